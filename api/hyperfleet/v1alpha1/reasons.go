// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "cmp"

// FormerReasons returns the reasons of conditions, events and ended machines that have been renamed, with their
// current names. Objects keep a former reason until the operator reconciles them.
func FormerReasons() map[string]string {
	return map[string]string{
		"Asked":              "PlatformQueried",
		"BusyRunnerLeft":     "BusyRunnerNotRemoved",
		"ChangedMeanwhile":   "Conflict",
		"GoesOn":             "NotStopped",
		"HostNotBack":        "RestartTimedOut",
		"IdentityLeft":       "IdentityNotRemoved",
		"LeftBehind":         EndReasonVMNotDeleted,
		"MachineComing":      "WaitingForMachine",
		"NoRoom":             "NoCapacity",
		"NodeCredentialLeft": "NodeCredentialNotRemoved", // #nosec G101 -- a reason
		"NodeLeft":           "NodeNotDeleted",
		"NodeReturning":      "WaitingForNode",
		"NodeSetAside":       "NodeExcluded",
		"NotKept":            "VerificationFailed",
		"NotLookedAt":        "NotReconciled",
		"NotMade":            "NotIssued",
		"NotSeen":            "NotReconciled",
		"Ordering":           "ScalingUp",
		"Returning":          "ScalingDown",
		"RunnerLeft":         "RunnerNotRemoved",
		"RunnerLookedFor":    "WaitingForRunnerList",
		"SeenAgain":          "VMReappeared",
		"SetAside":           "Excluded",
		"Unreadable":         "InvalidData",
		"UploadNotPassedOn":  "UploadNotCopied",
		"VMVanished":         "VMNotFound",
		"Vanished":           "VMNotFound",
		"WaitingForRoom":     "WaitingForDeletion",
	}
}

// CurrentReason returns the current name of a reason.
func CurrentReason(reason string) string { return cmp.Or(FormerReasons()[reason], reason) }
