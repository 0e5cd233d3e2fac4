// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 replaces the package with the same name, for the same reason as package core.
package v1beta1

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// VirtualMachineTemplate is an object without known fields.
type VirtualMachineTemplate struct{ unstructured.Unstructured }
