// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// Sweep configures `hyperfleet-platform sweep`.
type Sweep struct {
	// Interval is the time between two runs. If it is 0, sweep runs once and exits. Default: 0.
	Interval time.Duration `yaml:"interval"`
	// Lease is the name of the lease of the fleet API that one of several replicas with an interval has. Sweeps of
	// other clusters need other names. Default: sweep.
	Lease string `yaml:"lease"`
	// Delete lets sweep delete objects. Without it, sweep only reports them.
	Delete bool `yaml:"delete"`
	// MaxDeletions is the maximum number of deletions. A run that would delete more objects deletes
	// nothing and reports that. Default: 100.
	MaxDeletions int `yaml:"max_deletions"`
	// MaxShare is the maximum share of missing resources among the resources to which the objects belong,
	// if there are more than five. If the share is larger, the fleet API may have lost its data, so sweep
	// deletes nothing. Default: 0.5. 1 allows all.
	MaxShare float64 `yaml:"max_share"`
	// MinAge is the minimum age of an object. Default: 10m.
	MinAge time.Duration `yaml:"min_age"`
	// Adapters are the adapters whose objects are checked. If it is empty, the objects of all adapters
	// are checked.
	Adapters []string `yaml:"adapters"`
	// IdentityKeyFile is the path of the HMAC key with which adapters sign objects. Required.
	IdentityKeyFile string `yaml:"identity_key_file"`
	// KubeConfigPath is the path of the cluster's kubeconfig. If it is empty, the in-cluster
	// configuration is used.
	KubeConfigPath string `yaml:"kube_config_path"`
	// Kinds are the only kinds that are checked, as Kind.group: Job.batch, ConfigMap. If it is empty, all
	// kinds that can be listed and deleted are checked. A kind that the cluster does not have is skipped
	// with a warning.
	Kinds []string `yaml:"kinds"`
	// ExcludedKinds are kinds that are not checked, as Kind.group: Event.events.k8s.io.
	ExcludedKinds []string      `yaml:"excluded_kinds"`
	Clients       SentinelPeers `yaml:"clients"`
	Log           Log           `yaml:"log"`
}
