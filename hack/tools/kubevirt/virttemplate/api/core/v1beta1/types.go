// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 stands in for the package of that name, as core does.
package v1beta1

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// VirtualMachineTemplate is an object, and nothing more is known of it here.
type VirtualMachineTemplate struct{ unstructured.Unstructured }
