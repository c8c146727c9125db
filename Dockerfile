# `robvit serve` in a container; see docs/deployment.md.
#
#     docker build -t robvit-serve .
#     docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges -p 127.0.0.1:8000:8000 robvit-serve
#
# Weights, heads and tokens are mounted, never built in: a token file is a secret, and layers of an image are not.
#
#     docker run ... -v "$PWD/models:/models:ro" robvit-serve /models/model.safetensors --head /models/head.safetensors

ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
# Torch comes with CUDA unless another index is named: for processors alone, an image of a third of the size,
# give --build-arg PIP_EXTRA_INDEX_URL= the index of torch's wheels for CPUs, which pip reads by itself.
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /opt/robvit \
    && /opt/robvit/bin/pip install --no-cache-dir -c constraints.txt ".[serve]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/robvit /opt/robvit
ENV PATH=/opt/robvit/bin:$PATH PYTHONDONTWRITEBYTECODE=1 ROBVIT_CACHE=/tmp/robvit HF_HUB_OFFLINE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["robvit", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["robvit-mini"]
