// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds gives a test's API server KubeVirt's own kinds: VirtualMachine,
// VirtualMachineInstance, VirtualMachineInstanceMigration and KubeVirt.
//
// KubeVirt publishes no YAML in its module: its schemas are Go strings in
// pkg/virt-operator/resource/generate/components/validations_generated.go, which is
// parsed here and not imported, because the package around it needs modules by the
// hundred. Names, versions and subresources are those of crds.go beside it. The printer
// columns are left out.
package crds
