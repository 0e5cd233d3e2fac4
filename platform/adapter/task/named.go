// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// CheckName says what keeps an API server from taking a name of an object of the group
// (Kubernetes, "Object Names and IDs"); empty if nothing does. Some kinds are stricter.
func CheckName(group, name string) string {
	check := validation.IsDNS1123Subdomain
	if group == "rbac.authorization.k8s.io" {
		check = content.IsPathSegmentName
	}

	return strings.Join(check(name), "; ")
}

// named checks an object's name and namespace as far as they are known before an event.
func (l *loader) named(at strictyaml.Path, out *Resource) {
	if out.Transport == transport.Kubernetes && out.Discovery.ByName != nil && out.Discovery.Namespace == nil {
		if namespace := out.Manifest.field("metadata", "namespace"); namespace != nil {
			l.problem(at.With("discovery", "namespace"), "the manifest has a namespace, and discovery by name looks in none").
				Hint = "write namespace: " + strconv.Quote(namespace.String())
		}
	}

	name := out.Manifest.field("metadata", "name")
	if name == nil {
		return
	}

	// What a variable will be is not known: a plain letter stands for it. Where that can't
	// be, such as for a field of a field, the name is checked with each event.
	vars := map[string]any{}

	for _, one := range name.uses {
		switch {
		case one.variable == nowVariable:
		case one.field == "":
			vars[one.variable] = "x"
		default:
			fields, _ := vars[one.variable].(map[string]any)
			if fields == nil {
				fields = map[string]any{}
			}

			fields[one.field] = "x"
			vars[one.variable] = fields
		}
	}

	rendered, err := name.Render(vars)
	if err != nil {
		return
	}

	version, _ := out.written()
	group, _, _ := strings.Cut(version, "/")

	if problem := CheckName(group, rendered); problem != "" {
		l.warnf(at.With("manifest", "metadata", "name"), `such as {{ .now | lower | replace ":" "-" }}`,
			"it would be something like %q, which is no name: %s", rendered, problem)
	}
}
