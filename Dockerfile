# acclimate serve: docker build -t acclimate .
#                  docker run -p 8000:8000 -e ACCLIMATE_TOKEN=secret acclimate
# docs/serving.md has more.
FROM python:3.11-slim

# An index of CPU builds of torch makes the image several gigabytes smaller.
ARG PIP_EXTRA_INDEX_URL=""
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    OMP_WAIT_POLICY=PASSIVE

WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install -c constraints.txt '.[serve]' \
    && useradd --create-home --uid 10001 acclimate \
    && install -d -o acclimate -g acclimate /streams

# By number, so that a cluster can check that it is not root.
USER 10001
WORKDIR /home/acclimate
# The states of the streams; a restart resumes them. Models and artifacts are mounted as well.
VOLUME /streams
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]

# Other machines reach the server, so it does not start without the variable ACCLIMATE_TOKEN.
ENTRYPOINT ["acclimate", "serve", "--host", "0.0.0.0", "--port", "8000", "--folder", "/streams"]
