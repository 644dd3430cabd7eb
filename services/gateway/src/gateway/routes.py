"""The public port's routes."""

from __future__ import annotations

from typing import Final

from starlette.routing import Route

from gateway.handlers import events, jobs, reference, result, service, submit

ROUTES: Final = (
    Route("/jobs", jobs.jobs, methods=["GET"]),
    Route("/jobs/{service_type}", submit.submit, methods=["POST"]),
    Route("/jobs/{service_type}/{id}", jobs.status, methods=["GET"]),
    Route("/jobs/{service_type}/{id}", jobs.cancel, methods=["DELETE"]),
    Route("/jobs/{service_type}/{id}/result", result.result, methods=["GET"]),
    Route("/jobs/{service_type}/{id}/result", result.delete, methods=["DELETE"]),
    Route("/jobs/{service_type}/{id}/events", events.events, methods=["GET"]),
    Route("/pipelines/{pipeline}", submit.submit, methods=["POST"]),
    Route("/pipelines/{pipeline}/{id}", jobs.status, methods=["GET"]),
    Route("/pipelines/{pipeline}/{id}", jobs.cancel, methods=["DELETE"]),
    Route("/pipelines/{pipeline}/{id}/result", result.result, methods=["GET"]),
    Route("/pipelines/{pipeline}/{id}/result", result.delete, methods=["DELETE"]),
    Route("/pipelines/{pipeline}/{id}/events", events.events, methods=["GET"]),
    Route("/models", service.models, methods=["GET"]),
    Route("/openapi.json", reference.openapi, methods=["GET"]),
    Route("/docs", reference.docs, methods=["GET"]),
    Route("/health/live", service.live, methods=["GET"]),
    Route("/health/ready", service.ready, methods=["GET"]),
)
