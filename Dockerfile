# One image for every process: `holdfast api`, `holdfast worker`, `holdfast migrate`.
FROM python:3.13-slim AS build
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

FROM python:3.13-slim
# bubblewrap is for tier 1 of the walls around tools. A container as it comes has tier 2, which does not need it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin holdfast \
    && install --directory --owner=holdfast --mode=0755 /var/cache/holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONUNBUFFERED=1 HOLDFAST_LOG_JSON=true
USER holdfast
WORKDIR /home/holdfast
EXPOSE 8283
# An API answers on its port. A worker has one where HOLDFAST_WORKER_PORT says so, which is its orchestrator's to ask.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "\
import urllib.request; \
command = open('/proc/1/cmdline', 'rb').read().split(b'\\0'); \
b'api' in command and urllib.request.urlopen('http://127.0.0.1:8283/healthz', timeout=4)"]
ENTRYPOINT ["holdfast"]
CMD ["api", "--host", "0.0.0.0", "--port", "8283"]
