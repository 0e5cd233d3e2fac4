// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install tests the files of a release that `make release` has built, from the installation to the
// first finished job (make e2e-install). Helm installs the charts on a real API server. The programs run as
// their Deployments specify, each with the service account from its chart. The hypervisor and GitHub are
// simulated.
package install
