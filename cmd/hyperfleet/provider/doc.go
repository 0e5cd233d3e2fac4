// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package provider implements `hyperfleet provider conform`, with which authors of hypervisor
// providers test their programs. It does not contact an API server.
package provider
