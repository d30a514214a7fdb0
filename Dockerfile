# Tacit on CPUs, with everything that `tacit demo` needs.
#   docker build --tag tacit .
#   docker run --rm --volume "$PWD:/work" tacit demo
# The first stage has a compiler and builds the wheel with its kernels; the second has none.
FROM python:3.13-bookworm AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="Tacit" \
      org.opencontainers.image.description="Deep learning with differential privacy, for PyTorch" \
      org.opencontainers.image.version="0.3.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/tacit-dp/tacit"
# pip's default is the build of PyTorch with CUDA, which is several gigabytes larger.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Another user than 1000 also writes its caches where it may: docker run --user "$(id -u)".
ENV MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    wheels=(/wheels/*.whl) \
 && pip install --no-cache-dir --constraint /constraints.txt --extra-index-url "$TORCH_INDEX" \
        "${wheels[0]}[cli,plots,sklearn,tables]" \
 && useradd --create-home --uid 1000 tacit \
 && install --directory --owner tacit /work
USER 1000
WORKDIR /work
ENTRYPOINT ["tacit"]
CMD ["--help"]
