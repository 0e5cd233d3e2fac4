// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"sync"
)

// FormerReasons returns the reasons of conditions, events and ended machines that have been renamed, with their
// current names. Objects keep a former reason until the operator reconciles them.
func FormerReasons() map[string]string {
	return map[string]string{
		"AddressesUnread":            "AddressesNotRead",
		"Asked":                      "PlatformQueried",
		"BuildkiteOrganizationWrong": "BuildkiteOrganizationMismatch",
		"BusyRunnerLeft":             "BusyRunnerNotRemoved",
		"ChangedMeanwhile":           "Conflict",
		"EarlierMachine":             "PreviousMachineExists",
		"EarlierServer":              "PreviousServerExists",
		"GitHubRegistrationsPaced":   "GitHubRegistrationsThrottled",
		"GoesOn":                     "NotStopped",
		"HostNotBack":                "RestartTimedOut",
		"HostsLeaving":               "DeletingHosts",
		"HostsMadeByHand":            "HostsCreatedManually",
		"IdentityLeft":               "IdentityNotRemoved",
		"LeftBehind":                 EndReasonVMNotDeleted,
		"MachineComing":              "WaitingForMachine",
		"NoRoom":                     "NoCapacity",
		"NodeCredentialLeft":         "NodeCredentialNotRemoved", // #nosec G101 -- a reason
		"NodeLeft":                   "NodeNotDeleted",
		"NodeReadyAlready":           "NodeAlreadyReady",
		"NodeReturning":              "WaitingForNode",
		"NodeSetAside":               "NodeExcluded",
		"NotKept":                    "VerificationFailed",
		"NotLookedAt":                "NotReconciled",
		"NotMade":                    "NotIssued",
		"NotSeen":                    "NotReconciled",
		"Ordering":                   "ScalingUp",
		"ProviderHangs":              "ProviderCircuitOpen",
		"Returning":                  "ScalingDown",
		"RunnerLeft":                 "RunnerNotRemoved",
		"RunnerLookedFor":            "WaitingForRunnerList",
		"SeenAgain":                  "VMReappeared",
		"ServerBroken":               "ServerError",
		"ServerGone":                 "ServerNotFound",
		"ServerWorking":              "WaitingForServer",
		"SetAside":                   "Excluded",
		"Unreadable":                 "InvalidData",
		"UploadNotPassedOn":          "UploadNotCopied",
		"VMVanished":                 "VMNotFound",
		"Vanished":                   "VMNotFound",
		"WaitingForRoom":             "WaitingForDeletion",
	}
}

// formerReasons is FormerReasons. Controllers ask for the reasons of thousands of claims at once.
//
//nolint:gochecknoglobals // created once and never changed
var formerReasons = sync.OnceValue(FormerReasons)

// CurrentReason returns the current name of a reason.
func CurrentReason(reason string) string { return cmp.Or(formerReasons()[reason], reason) }

// IsNoCapacity reports whether a condition's reason means that a claim waits for capacity: its nodes are full, or excluded
// after failures, or another VM has the device of the machine. A pool may replace such a claim.
func IsNoCapacity(reason string) bool {
	switch CurrentReason(reason) {
	case "NoCapacity", "NodeExcluded", "DeviceInUse":
		return true
	default:
		return false
	}
}
