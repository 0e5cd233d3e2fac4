// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleetapi is the command `hyperfleet api`: it reads the configuration and wires the
// fleet API (platform/server) to Postgres (platform/store).
package fleetapi
