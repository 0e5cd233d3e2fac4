// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fence prevents a former leader from writing after its lease has expired.
//
// Leader election stops a leader that cannot renew its lease in time. A leader whose machine was
// paused or moved resumes in the middle of its work and does not know how much time has passed.
// Leader election notices only after the next renewal has failed for client-go's RenewDeadline. By
// then, another replica may be the leader. The fence therefore checks the clock before each call.
package fence
