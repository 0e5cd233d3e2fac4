// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install takes a release, as `make release` makes it, and goes by the files in it
// from nothing to a first finished job (make e2e-install): helm installs its charts on a real
// API server, and its programs run as the Deployments there say, each under the account that
// the chart has made. The hypervisor and GitHub are simulated.
package install
