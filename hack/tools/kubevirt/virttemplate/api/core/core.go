// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package core replaces the package with the same name, because not every module proxy serves its module. It has the
// names that KubeVirt's webhooks need to compile. No code here uses templates of KubeVirt.
package core

const (
	GroupName            = "template.kubevirt.io"
	SingularResourceName = "virtualmachinetemplate"
	PluralResourceName   = "virtualmachinetemplates"
)
