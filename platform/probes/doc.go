// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probes serves what looks after a program of the platform asks it: /healthz and
// /readyz on one address, /metrics on another.
package probes
