// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claimstatus writes the fields of one field manager, mainly conditions, into a status that other
// controllers also write. These are the statuses of KubevirtMachines, and of MachineClaims and
// HypervisorMachineTemplates, which the runners area owns. The package also has the constructors of the
// machine controllers that write such statuses.
//
// Two writers share one list of conditions. For server-side apply, the list is a map with the condition
// type as key, so this package changes no condition of another writer. The other writers (kit/step) send
// patches with the resourceVersion of the list that they have read. The API server refuses a patch with an
// older list, and the writer retries it.
package claimstatus
