// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claimstatus writes single conditions of the networking area into the status of
// MachineClaims, whose status is otherwise the runners area's.
//
// Two writers share one list. Conditions are a map by their type to server-side apply, so
// that what is written here touches no other condition; and the runners area's patches
// carry the resourceVersion of the list that they hold, so that one with an older list is
// refused and made again.
package claimstatus
