// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package uninstall implements `hyperfleet uninstall`. The command deletes an installation in an order that
// leaves nothing behind: first the machines, which the operator deletes, then the pools, templates and
// clusters, and then the operator and the CRDs. If objects still exist after a timeout, the command stops and
// lists them. It keeps the operator in that case, because only the operator can delete the objects.
package uninstall
