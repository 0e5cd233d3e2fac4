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

// CheckName returns why an API server rejects the name of an object of the group (Kubernetes,
// "Object Names and IDs"), and an empty string if the name is valid. Some kinds are stricter.
func CheckName(group, name string) string {
	check := validation.IsDNS1123Subdomain
	if group == "rbac.authorization.k8s.io" {
		check = content.IsPathSegmentName
	}

	return strings.Join(check(name), "; ")
}

// checkObjectName checks an object's name and namespace as far as they are known before an event.
func (l *loader) checkObjectName(keyPath strictyaml.Path, out *Resource) {
	if out.Transport == transport.Kubernetes && out.Discovery.ByName != nil && out.Discovery.Namespace == nil {
		if namespace := out.Manifest.fieldTemplate("metadata", "namespace"); namespace != nil {
			l.addProblem(keyPath.Append("discovery", "namespace"), "the manifest has a namespace, but discovery by name has none").
				Hint = "write namespace: " + strconv.Quote(namespace.String())
		}
	}

	name := out.Manifest.fieldTemplate("metadata", "name")
	if name == nil {
		return
	}

	// The values of variables are unknown, so the name is rendered with the letter x for each value.
	// If rendering fails, for example because of a field of a field, the name is checked with each event.
	vars := map[string]any{}

	for _, reference := range name.references {
		switch {
		case reference.variable == nowVariable:
		case reference.field == "":
			vars[reference.variable] = "x"
		default:
			fields, _ := vars[reference.variable].(map[string]any)
			if fields == nil {
				fields = map[string]any{}
			}

			fields[reference.field] = "x"
			vars[reference.variable] = fields
		}
	}

	rendered, err := name.Render(vars)
	if err != nil {
		return
	}

	version, _ := out.literalKind()
	group, _, _ := strings.Cut(version, "/")

	if problem := CheckName(group, rendered); problem != "" {
		l.warnf(keyPath.Append("manifest", "metadata", "name"), `for example, write {{ .now | lower | replace ":" "-" }}`,
			"the name would be, for example, %q, which is not a valid name: %s", rendered, problem)
	}
}
