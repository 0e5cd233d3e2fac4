// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// groupRBAC is the API group whose names may contain upper-case letters.
const groupRBAC = "rbac.authorization.k8s.io"

// CheckName returns why an API server rejects the name of an object of the group (Kubernetes,
// "Object Names and IDs"), and an empty string if the name is valid. Some kinds are stricter.
func CheckName(group, name string) string {
	check := validation.IsDNS1123Subdomain
	if group == groupRBAC {
		check = content.IsPathSegmentName
	}

	return strings.Join(check(name), "; ")
}

// toLowerName returns a name in lower case if it is valid only then, and unchanged otherwise.
func toLowerName(name string) string {
	if lower := strings.ToLower(name); CheckName("", name) != "" && CheckName("", lower) == "" {
		return lower
	}

	return name
}

// setLowersName sets whether names of an entry's kind have to be lower case.
func (r *Resource) setLowersName() {
	version, _ := r.literalKind()
	group, _, _ := strings.Cut(version, "/")

	lowersName := version != "" && group != groupRBAC
	r.Discovery.lowersName = lowersName

	if r.Manifest != nil {
		r.Manifest.lowersName = lowersName
	}
}

// Render renders the namespace, and the name or the labels. It returns an error if a value is not one namespace, name
// or label value, because such a value would select other objects.
func (d *Discovery) Render(vars map[string]any) (namespace, name string, labels map[string]string, err error) {
	render := func(field string, template *Template, check func(string) []string) string {
		if template == nil || err != nil {
			return ""
		}

		value, renderErr := template.Render(vars)
		if renderErr != nil {
			err = fmt.Errorf("discovery.%s: %w", field, renderErr)
		} else if problems := check(value); len(problems) > 0 {
			err = fmt.Errorf("discovery.%s: the value of %q is not valid: %s", field, template.String(), strings.Join(problems, "; "))
		}

		return value
	}

	if namespace = render("namespace", d.Namespace, checkNamespace); d.ByName != nil {
		if name = render("by_name", d.ByName, checkQueryName); d.lowersName {
			name = toLowerName(name)
		}

		return namespace, name, nil, err
	}

	labels = make(map[string]string, len(d.Labels))
	for _, key := range slices.Sorted(maps.Keys(d.Labels)) {
		labels[key] = render("by_selectors.label_selector "+key, d.Labels[key], validation.IsValidLabelValue)
	}

	return namespace, "", labels, err
}

// checkNamespace accepts an empty namespace, which means none.
func checkNamespace(value string) []string {
	if value == "" {
		return nil
	}

	return validation.IsDNS1123Label(value)
}

func checkQueryName(value string) []string {
	if value == "" {
		return []string{"it is empty"}
	}

	return content.IsPathSegmentName(value)
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

	if out.Manifest.lowersName {
		rendered = toLowerName(rendered)
	}

	if problem := CheckName(group, rendered); problem != "" {
		l.warnf(keyPath.Append("manifest", "metadata", "name"), `for example, write {{ .now | lower | replace ":" "-" }}`,
			"the name would be, for example, %q, which is not a valid name: %s", rendered, problem)
	}
}
