// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	statePartial   = "Partial"
	stateCompleted = "Completed"
	// digestVersion is the version of an image that is named by a digest.
	digestVersion = "4.15.0"
)

// release is the image and version of a desired release.
type release struct {
	Image   string `json:"image"`
	Version string `json:"version"`
}

// historyEntry is an entry of status.version.history. Without Verified, it is also an entry of
// status.controlPlaneVersion.history.
type historyEntry struct {
	State          string       `json:"state"`
	StartedTime    metav1.Time  `json:"startedTime"`
	CompletionTime *metav1.Time `json:"completionTime"`
	Version        string       `json:"version"`
	Image          string       `json:"image"`
	Verified       bool         `json:"verified"`
}

// parseTagVersion returns the version at the start of an OpenShift release tag, for example 4.15.0 of
// 4.15.0-x86_64. For an image with a digest, it returns digestVersion.
func parseTagVersion(image string) (string, error) {
	if strings.Contains(image, "@") {
		return digestVersion, nil
	}

	tag := image[strings.LastIndex(image, ":")+1:]
	version, _, _ := strings.Cut(tag, "-")

	if parts := strings.Split(version, "."); len(parts) != 3 {
		return "", fmt.Errorf("failed to lookup release image: no release in %s", image)
	}

	if _, err := parseMinor(version); err != nil {
		return "", err
	}

	return version, nil
}

// parseMinor returns the minor number of a version.
func parseMinor(version string) (int, error) {
	parts := strings.Split(version, ".")
	if len(parts) < 2 {
		return 0, fmt.Errorf("%q is not a version", version)
	}

	number, err := strconv.Atoi(parts[1])
	if err != nil {
		return 0, fmt.Errorf("%q is not a version: %w", version, err)
	}

	return number, nil
}

// validateVersion returns an error for a downgrade and for a version that HyperShift does not support. It
// is the part of IsValidReleaseVersion (support/supportedversion) that applies to the network types of
// the simulated clusters.
func (h *hostedClusterReconciler) validateVersion(version string) error {
	requested, err := parseMinor(version)
	if err != nil {
		return err
	}

	newest, _ := parseMinor(h.options.Supported[0])
	oldest, _ := parseMinor(h.options.Supported[len(h.options.Supported)-1])

	if current := h.rolledOutVersion(); current != "" {
		if currentMinor, err := parseMinor(current); err == nil && currentMinor > requested {
			return fmt.Errorf("y-stream downgrade from %q to %q is not supported", current, version)
		}
	}

	switch {
	case requested > newest:
		return fmt.Errorf("the latest version supported is: %q. Attempting to use: %q", h.options.Supported[0], version)
	case requested < oldest:
		return fmt.Errorf("the minimum version supported for platform %s is: %q. Attempting to use: %q",
			h.readString("spec", "platform", "type"), h.options.Supported[len(h.options.Supported)-1], version)
	}

	return nil
}

// rolledOutVersion returns the version that was rolled out last. It is empty before the first rollout is
// complete.
func (h *hostedClusterReconciler) rolledOutVersion() string {
	history, _, _ := unstructured.NestedSlice(h.status, "version", "history")

	for _, item := range history {
		entry, _ := item.(map[string]any)
		if entry["state"] == stateCompleted {
			version, _ := entry["version"].(string)

			return version
		}
	}

	return ""
}

// advanceRollout simulates the rollout of a version to the control plane, and to the cluster's own
// operators, which need workers.
func (h *hostedClusterReconciler) advanceRollout(available bool, version string) error {
	image := h.readString("spec", "release", "image")
	isRolledOut := available && h.hasElapsed(h.key, h.object.GetUID(), "rollout "+image, h.options.Delays.Rollout)
	isDone := isRolledOut && !h.hasFault(NoWorkers, h.key.Name)

	if err := h.updateHistory("controlPlaneVersion", release{image, version}, isRolledOut); err != nil {
		return err
	}

	if err := h.updateHistory("version", release{image, version}, isDone); err != nil {
		return err
	}

	if isDone {
		h.setCondition("ClusterVersionProgressing", metav1.ConditionFalse, "FromClusterVersion", "Cluster version is "+version)
		h.setCondition("ClusterVersionAvailable", metav1.ConditionTrue, "FromClusterVersion", "Done applying "+version)
	} else {
		h.setCondition("ClusterVersionProgressing", metav1.ConditionTrue, "FromClusterVersion", "Working towards "+version)
	}

	if meta.FindStatusCondition(h.conditions, "ClusterVersionAvailable") == nil {
		h.setCondition("ClusterVersionAvailable", metav1.ConditionFalse, "FromClusterVersion", "")
	}

	h.setCondition("ClusterVersionSucceeding", metav1.ConditionTrue, "FromClusterVersion", "")

	if isRolledOut {
		h.setCondition("Progressing", metav1.ConditionFalse, reasonAsExpected, "HostedCluster is at expected version")
	} else {
		h.setCondition("Progressing", metav1.ConditionTrue, "Progressing", "HostedCluster is deploying, upgrading, or reconfiguring")
	}

	return nil
}

// updateHistory puts a release first in the history of a status field, and sets the completion time if
// its rollout is done.
func (h *hostedClusterReconciler) updateHistory(field string, target release, isDone bool) error {
	entries, _, _ := unstructured.NestedSlice(h.status, field, "history")
	now := metav1.NewTime(h.options.Clock.Now())

	first := map[string]any{}
	if len(entries) > 0 {
		first, _ = entries[0].(map[string]any)
	}

	if first["image"] != target.Image {
		entry, err := toUnstructured(historyEntry{State: statePartial, StartedTime: now, Version: target.Version, Image: target.Image})
		if err != nil {
			return err
		}

		first, entries = entry, slices.Insert(entries, 0, any(entry))
	}

	if isDone && first["state"] != stateCompleted {
		first["state"], first["completionTime"] = stateCompleted, now.UTC().Format("2006-01-02T15:04:05Z")
	}

	desired, err := toUnstructured(target)
	if err != nil {
		return err
	}

	value := map[string]any{"desired": desired, "history": entries, "observedGeneration": h.object.GetGeneration()}
	if field == "version" {
		value["availableUpdates"] = nil
	} else {
		for _, item := range entries {
			entry, _ := item.(map[string]any)
			delete(entry, "verified")

			if entry["completionTime"] == nil {
				delete(entry, "completionTime")
			}
		}
	}

	h.status[field] = value

	return nil
}
