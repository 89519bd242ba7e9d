# One image for every process: `holdfast api`, `holdfast worker`, `holdfast migrate`.
FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/holdfast
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY shared shared
COPY worker worker
COPY api api
RUN /opt/holdfast/bin/pip install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt '.[anthropic,google,postgres]'

FROM python:3.13-slim
# bubblewrap is for the walls that tools are to get; today a tool call is a process of its own and does not use it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONUNBUFFERED=1 HOLDFAST_LOG_JSON=true
USER holdfast
WORKDIR /home/holdfast
EXPOSE 8283
ENTRYPOINT ["holdfast"]
CMD ["api", "--host", "0.0.0.0", "--port", "8283"]
