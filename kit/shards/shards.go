// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package shards

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

const (
	// labelDigest on a Lease is a digest of the names of the served namespaces.
	labelDigest = "hyperfleet.io/namespaces"
	// prefixNamespace is the prefix of a label on the Lease of an operator. Each label names one namespace that
	// the operator serves. The label's value is labelDigest. A label with another value belongs to an earlier
	// configuration, because the client that renews the Lease removes no labels.
	prefixNamespace = "namespaces.hyperfleet.io/"
	digestLength    = 16
	// separator is between the areas of the operator and the name of its shard in the name of its Lease.
	separator = "."
)

// LeaseName returns the name of the Lease for leader election of a process that runs the given areas, such as
// hyperfleet-runners or hyperfleet-networking-runners, or hyperfleet-runners.SHARD. All replicas of a Deployment share
// the Lease. Two Deployments must not run the same area in the same namespace, because it would have two leaders.
func LeaseName(controllers []string, shard string) string {
	names := slices.Clone(controllers)
	slices.Sort(names)

	name := config.LeasePrefix + strings.Join(slices.Compact(names), "-")
	if shard == "" {
		return name
	}

	return name + separator + shard
}

// ParseLeaseName returns the areas and the shard in the name of a Lease. It returns false if the name is not that of an
// operator's Lease.
func ParseLeaseName(name string) (areas []string, shard string, ok bool) {
	rest, ok := strings.CutPrefix(name, config.LeasePrefix)
	joined, shard, _ := strings.Cut(rest, separator)
	areas = strings.Split(joined, "-")

	// Other programs have Leases with the same prefix.
	if !ok || slices.ContainsFunc(areas, func(area string) bool { return !slices.Contains(config.Areas(), area) }) {
		return nil, "", false
	}

	return areas, shard, true
}

// NewLabels returns the labels of the Lease of an operator that serves the namespaces. The value of each label is a digest of
// all namespaces, by which ParseLabels recognizes labels of an earlier configuration. NewLabels returns nil for an operator that
// serves all namespaces.
func NewLabels(namespaces []string) map[string]string {
	if len(namespaces) == 0 {
		return nil
	}

	sorted := slices.Compact(slices.Sorted(slices.Values(namespaces)))
	sum := sha256.Sum256([]byte(strings.Join(sorted, ",")))
	digest := hex.EncodeToString(sum[:])[:digestLength]
	out := map[string]string{labelDigest: digest}

	for _, namespace := range sorted {
		out[prefixNamespace+namespace] = digest
	}

	return out
}

// ParseLabels returns the namespaces in the labels of a Lease, sorted. It returns false if the operator serves all
// namespaces.
func ParseLabels(labels map[string]string) ([]string, bool) {
	digest := labels[labelDigest]
	if digest == "" {
		return nil, false
	}

	var out []string

	for label, value := range labels {
		if namespace, ok := strings.CutPrefix(label, prefixNamespace); ok && value == digest {
			out = append(out, namespace)
		}
	}

	slices.Sort(out)

	return out, true
}
