// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claimstatus writes one owner's part of a status, conditions above all, beside whoever
// else writes there: into MachineClaims and HypervisorMachineTemplates, whose status is otherwise
// the runners area's, and KubevirtMachines. It begins the controllers of machines that do so.
//
// Two writers share one list. Conditions are a map by their type to server-side apply, so
// that what is written here touches no other condition; and the patches of the others
// (kit/step) carry the resourceVersion of the list that they hold, so that one with an older
// list is refused and made again.
package claimstatus
