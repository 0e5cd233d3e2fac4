// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds installs KubeVirt's own CRDs on a test's API server: VirtualMachine,
// VirtualMachineInstance, VirtualMachineInstanceMigration and KubeVirt.
//
// KubeVirt's Go module contains no YAML. Its schemas are Go strings in
// pkg/virt-operator/resource/generate/components/validations_generated.go. This package parses that file
// and does not import its package, because that package needs hundreds of modules. Names, versions and
// subresources are copied from crds.go in the same folder. The CRDs have no printer columns.
package crds
