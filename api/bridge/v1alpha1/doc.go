// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of the bridge between DPU clusters and hosted control planes.
//
// +kubebuilder:object:generate=true
// +groupName=dpf.hcp.bridge.com
package v1alpha1
