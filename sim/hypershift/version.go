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
	// versionOfDigest is that of an image named by a digest.
	versionOfDigest = "4.15.0"
)

// release is an entry of a version's history, and what is wanted of it.
type release struct {
	Image   string `json:"image"`
	Version string `json:"version"`
}

// update is an entry of status.version.history and, but for Verified, of
// status.controlPlaneVersion.history.
type update struct {
	State          string       `json:"state"`
	StartedTime    metav1.Time  `json:"startedTime"`
	CompletionTime *metav1.Time `json:"completionTime"`
	Version        string       `json:"version"`
	Image          string       `json:"image"`
	Verified       bool         `json:"verified"`
}

// versionOfTag reads the version that a tag of OpenShift's begins with: 4.15.0-x86_64.
func versionOfTag(image string) (string, error) {
	if strings.Contains(image, "@") {
		return versionOfDigest, nil
	}

	tag := image[strings.LastIndex(image, ":")+1:]
	version, _, _ := strings.Cut(tag, "-")

	if parts := strings.Split(version, "."); len(parts) != 3 {
		return "", fmt.Errorf("failed to lookup release image: no release in %s", image)
	}

	if _, err := minor(version); err != nil {
		return "", err
	}

	return version, nil
}

// minor of a version.
func minor(version string) (int, error) {
	parts := strings.Split(version, ".")
	if len(parts) < 2 {
		return 0, fmt.Errorf("%q is no version", version)
	}

	number, err := strconv.Atoi(parts[1])
	if err != nil {
		return 0, fmt.Errorf("%q is no version: %w", version, err)
	}

	return number, nil
}

// checkVersion is IsValidReleaseVersion of support/supportedversion, as far as it is about
// the network types that the simulated clusters have.
func (h *hosted) checkVersion(version string) error {
	wanted, err := minor(version)
	if err != nil {
		return err
	}

	newest, _ := minor(h.options.Supported[0])
	oldest, _ := minor(h.options.Supported[len(h.options.Supported)-1])

	if current := h.rolledOut(); current != "" {
		if now, err := minor(current); err == nil && now > wanted {
			return fmt.Errorf("y-stream downgrade from %q to %q is not supported", current, version)
		}
	}

	switch {
	case wanted > newest:
		return fmt.Errorf("the latest version supported is: %q. Attempting to use: %q", h.options.Supported[0], version)
	case wanted < oldest:
		return fmt.Errorf("the minimum version supported for platform %s is: %q. Attempting to use: %q",
			h.string("spec", "platform", "type"), h.options.Supported[len(h.options.Supported)-1], version)
	}

	return nil
}

// rolledOut is the version that the cluster has; none before the first one is complete.
func (h *hosted) rolledOut() string {
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

// rollOut plays the version: of the control plane, and of the cluster's own operators,
// which need workers.
func (h *hosted) rollOut(available bool, version string) error {
	image := h.string("spec", "release", "image")
	begun := available && h.after(h.key, h.object.GetUID(), "rollout "+image, h.options.Delays.Rollout)
	done := begun && !h.has(NoWorkers, h.key.Name)

	if err := h.history("controlPlaneVersion", release{image, version}, begun); err != nil {
		return err
	}

	if err := h.history("version", release{image, version}, done); err != nil {
		return err
	}

	if done {
		h.say("ClusterVersionProgressing", metav1.ConditionFalse, "FromClusterVersion", "Cluster version is "+version)
		h.say("ClusterVersionAvailable", metav1.ConditionTrue, "FromClusterVersion", "Done applying "+version)
	} else {
		h.say("ClusterVersionProgressing", metav1.ConditionTrue, "FromClusterVersion", "Working towards "+version)
	}

	if meta.FindStatusCondition(h.conds, "ClusterVersionAvailable") == nil {
		h.say("ClusterVersionAvailable", metav1.ConditionFalse, "FromClusterVersion", "")
	}

	h.say("ClusterVersionSucceeding", metav1.ConditionTrue, "FromClusterVersion", "")

	if begun {
		h.say("Progressing", metav1.ConditionFalse, reasonAsExpected, "HostedCluster is at expected version")
	} else {
		h.say("Progressing", metav1.ConditionTrue, "Progressing", "HostedCluster is deploying, upgrading, or reconfiguring")
	}

	return nil
}

// history puts a release first in a version's history, and notes when it is complete.
func (h *hosted) history(field string, wanted release, done bool) error {
	entries, _, _ := unstructured.NestedSlice(h.status, field, "history")
	now := metav1.NewTime(h.options.Clock.Now())

	first := map[string]any{}
	if len(entries) > 0 {
		first, _ = entries[0].(map[string]any)
	}

	if first["image"] != wanted.Image {
		entry, err := plain(update{State: statePartial, StartedTime: now, Version: wanted.Version, Image: wanted.Image})
		if err != nil {
			return err
		}

		first, entries = entry, slices.Insert(entries, 0, any(entry))
	}

	if done && first["state"] != stateCompleted {
		first["state"], first["completionTime"] = stateCompleted, now.UTC().Format("2006-01-02T15:04:05Z")
	}

	desired, err := plain(wanted)
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
