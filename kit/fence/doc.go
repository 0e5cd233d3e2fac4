// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fence keeps a leader from writing once its lease has run out.
//
// Leader election stops a leader that can't renew its lease in time. One that was stopped
// itself, with its machine paused or moved, comes back with its work half done and does not
// know of the time that has passed: the election notices only when its next renewal has
// failed for as long as it may (client-go's RenewDeadline), and another leads by then. The
// fence looks at the clock before each call instead.
package fence
