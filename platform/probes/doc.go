// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probes serves the endpoints with which Kubernetes and Prometheus observe a program of
// the fleet platform: /healthz and /readyz on one address, /metrics on another.
package probes
