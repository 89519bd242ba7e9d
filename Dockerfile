# One image for every process: `holdfast api`, `holdfast worker`, `holdfast migrate`.
# To choose another base, such as this one by its digest: --build-arg PYTHON_IMAGE=python@sha256:…
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv /opt/holdfast
COPY constraints.txt pyproject.toml setup.py README.md LICENSE ./
COPY holdfast holdfast
COPY shared shared
COPY worker worker
COPY api api
COPY cli cli
RUN /opt/holdfast/bin/pip install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt '.[google,otel,packages,postgres]'

FROM ${PYTHON_IMAGE}
# bubblewrap is for tier 1 of the walls around tools. A container has tier 2 by default, which does not need it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin holdfast \
    && install --directory --owner=holdfast --mode=0755 /var/cache/holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONUNBUFFERED=1 HOLDFAST_LOG_JSON=true HOLDFAST_WORKER_PORT=9100
USER holdfast
WORKDIR /home/holdfast
EXPOSE 8283
# Tests an API at the port of its command line, and a worker at HOLDFAST_WORKER_PORT, which is open only in the container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-I", "-m", "holdfast.health"]
ENTRYPOINT ["holdfast"]
CMD ["api", "--host", "0.0.0.0", "--port", "8283"]
