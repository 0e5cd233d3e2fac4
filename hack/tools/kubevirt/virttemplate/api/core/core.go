// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package core stands in for the package of that name, whose module is not one that every
// module proxy serves: the names that KubeVirt's webhooks compile against. No template of
// KubeVirt's is ever looked at here.
package core

const (
	GroupName            = "template.kubevirt.io"
	SingularResourceName = "virtualmachinetemplate"
	PluralResourceName   = "virtualmachinetemplates"
)
