// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// Sweep configures `hyperfleet-platform sweep`, which runs once.
type Sweep struct {
	// Delete lets sweep delete; without it, it only reports.
	Delete bool `yaml:"delete"`
	// MaxDeletions: a run that would delete more deletes nothing, and says so.
	// Default: 100.
	MaxDeletions int `yaml:"max_deletions"`
	// MaxShare is which share of the resources that objects are of may be gone, where
	// there are more than five: beyond it the fleet API may have lost its data, and
	// nothing is deleted. Default: 0.5; 1 allows all.
	MaxShare float64 `yaml:"max_share"`
	// MinAge is how old an object has to be. Default: 10m.
	MinAge time.Duration `yaml:"min_age"`
	// Adapters are those whose objects are looked at; empty: all.
	Adapters []string `yaml:"adapters"`
	// IdentityKeyFile holds the key of the HMAC that adapters stamp with. Required.
	IdentityKeyFile string `yaml:"identity_key_file"`
	// KubeConfigPath of the cluster; empty: in the cluster.
	KubeConfigPath string `yaml:"kube_config_path"`
	// Kinds are the only ones looked at, as Kind.group: Job.batch, ConfigMap; empty: all that
	// can be listed and deleted. What the cluster has not is passed over, with a warning.
	Kinds []string `yaml:"kinds"`
	// ExcludedKinds are not looked at, as Kind.group: Event.events.k8s.io.
	ExcludedKinds []string      `yaml:"excluded_kinds"`
	Clients       SentinelPeers `yaml:"clients"`
	Log           Log           `yaml:"log"`
}
