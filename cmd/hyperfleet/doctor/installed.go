// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/crds"
	"github.com/hyperfleet/hyperfleet/deploy"
)

type resourceDefinition = apiextensionsv1.CustomResourceDefinition

// checkCRDs reports whether the CRDs of an area are installed and match those of this program. It returns the
// CRDs that are installed. If it cannot read the CRDs, it returns all expected CRDs.
func (d *doctor) checkCRDs(ctx context.Context, area string, expected []*resourceDefinition) []*resourceDefinition {
	subject := "CRDs of " + area

	var (
		installed                    []*resourceDefinition
		missing, outdated, differing []string
	)

	for _, crd := range expected {
		actual := &resourceDefinition{}
		err := d.client.Get(ctx, client.ObjectKeyFromObject(crd), actual)

		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, crd.Name)

			continue
		case err != nil:
			// A missing permission is reported once, because it applies to all CRDs.
			if !apierrors.IsForbidden(err) || !d.areCRDsForbidden {
				d.reportUnreadable("CRDs", err)
			}

			d.areCRDsForbidden = true

			// The CRDs may be installed although they cannot be read.
			return expected
		}

		installed = append(installed, crd)

		if fields := findMissingFields(crd, actual); len(fields) > 0 {
			outdated = append(outdated, crd.Name+" lacks "+strings.Join(fields, ", "))
		}

		if !apihelpers.IsCRDConditionTrue(actual, apiextensionsv1.Established) ||
			!apiequality.Semantic.DeepEqual(actual.Spec.Versions, crd.Spec.Versions) {
			differing = append(differing, crd.Name)
		}
	}

	switch {
	case len(installed) == 0:
		d.report.addf(Warning, subject, "none is installed, so the area is disabled: to enable the area, "+crds.Fix)
	case len(missing) > 0:
		d.report.addf(Problem, subject, "%s missing: %s", strings.Join(missing, ", "), crds.Fix)
	case len(outdated) > 0:
		d.report.addf(Problem, subject, "%s: an operator of this version does not start the area: %s",
			strings.Join(outdated, "; "), crds.Fix)
	case len(differing) > 0:
		d.report.addf(Warning, subject, "%s differ from the CRDs of this program (see hyperfleet version): "+
			"use the same version of hyperfleet as the operator, or %s", strings.Join(differing, ", "), crds.Fix)
	default:
		d.report.addf(OK, subject, "%d installed, all match this version of hyperfleet", len(installed))
	}

	return installed
}

// findMissingFields returns the fields of the CRD's version that the installed CRD lacks.
func findMissingFields(expected, installed *resourceDefinition) []string {
	for i := range installed.Spec.Versions {
		if version := &installed.Spec.Versions[i]; version.Name == expected.Spec.Versions[0].Name && version.Schema != nil {
			return crds.FindMissingFields(expected.Spec.Versions[0].Schema.OpenAPIV3Schema, version.Schema.OpenAPIV3Schema)
		}
	}

	return []string{"version " + expected.Spec.Versions[0].Name}
}

// areaFix tells how to install the operator and the RBAC roles of an area.
func areaFix(area string) string {
	file := "hyperfleet.yaml"
	if area == config.AreaBridge {
		file = "hyperfleet-bridge.yaml"
	}

	return "run `kubectl apply --server-side -f " + file + "` with the file of the release, " +
		"or install its chart hyperfleet with areas." + area + ".enabled"
}

// reportUnreadable reports that the subject could not be read. A missing permission is a warning, any other
// error is a problem.
func (d *doctor) reportUnreadable(subject string, err error) {
	if apierrors.IsForbidden(err) {
		d.report.addf(Warning, subject, "no permission to read: %v", err)

		return
	}

	d.report.addf(Problem, subject, "cannot be read: %v", err)
}

// checkRoles reports whether the operator's RBAC roles of an area have exactly the rules that this program
// expects. It returns an error only if the manifests that are built into this program are invalid.
func (d *doctor) checkRoles(ctx context.Context, area string, leaders []leader) error {
	expected, fix, err := d.listExpectedRoles(ctx, area, leaders)
	if err != nil {
		return fmt.Errorf("read embedded roles of area %s: %w", area, err)
	}

	subject := "RBAC roles of " + area

	var differing []string

	for _, role := range expected {
		name, rules, err := d.getRules(ctx, role)

		switch {
		case apierrors.IsNotFound(err):
			d.report.addf(Problem, subject, "%s is missing: %s", name, fix)

			return nil
		case err != nil:
			d.reportUnreadable(subject, err)

			return nil
		case !apiequality.Semantic.DeepEqual(rules, role.Rules):
			differing = append(differing, name)
		}
	}

	if len(differing) > 0 {
		d.report.addf(Warning, subject, "%s: the rules differ from those of this program (see hyperfleet version): "+
			"use the same version of hyperfleet as the operator, or %s", strings.Join(differing, ", "), fix)
	} else {
		d.report.addf(OK, subject, "all match this version of hyperfleet")
	}

	return nil
}

// shardsFix tells how to install the RBAC roles of operators that divide the namespaces. The manifests of an area would add
// an operator that serves all namespaces.
const shardsFix = "run `kubectl apply --server-side -f deploy/shards/roles.yaml` with the file of the release, " +
	"or install its chart hyperfleet with shards"

// listExpectedRoles returns the roles of an area, and how to install them. Operators that divide the namespaces have other
// ClusterRoles, unless they use the one of an operator that serves all namespaces.
func (d *doctor) listExpectedRoles(
	ctx context.Context, area string, leaders []leader,
) (roles []*rbacv1.ClusterRole, howToInstall string, err error) {
	roles, err = decodeRoles(deploy.RBAC, "rbac/"+area+".yaml")
	if err != nil {
		return nil, "", err
	}

	servesAll := slices.ContainsFunc(leaders, func(l leader) bool { return l.isFresh && !l.isLimited })
	if area != config.AreaRunners || servesAll {
		return roles, areaFix(area), nil
	}

	limited, err := decodeRoles(deploy.Shards, "shards/roles.yaml")
	if err != nil {
		return nil, "", err
	}

	isCluster := func(role *rbacv1.ClusterRole) bool { return role.Kind == "ClusterRole" }
	isMissing := func(role *rbacv1.ClusterRole) bool {
		_, _, err := d.getRules(ctx, role)

		return apierrors.IsNotFound(err)
	}

	// Without a Lease of an operator, the roles that exist tell which ones were installed.
	isDivided := len(leaders) > 0 || !slices.ContainsFunc(limited, isMissing)
	if !isDivided || !isMissing(roles[slices.IndexFunc(roles, isCluster)]) {
		return roles, areaFix(area), nil
	}

	return append(limited, slices.DeleteFunc(roles, isCluster)...), shardsFix, nil
}

// decodeRoles reads Roles and ClusterRoles, which have the same fields.
func decodeRoles(files fs.FS, path string) ([]*rbacv1.ClusterRole, error) {
	text, err := fs.ReadFile(files, path)
	if err != nil {
		return nil, err
	}

	var out []*rbacv1.ClusterRole

	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text)); ; {
		role := &rbacv1.ClusterRole{}

		switch err := decoder.Decode(role); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("decode %s: %w", path, err)
		case role.Name != "": // not a comment
			out = append(out, role)
		}
	}
}

// getRules returns the display name and the rules of the installed Role or ClusterRole that has the kind and
// the name of the given role.
func (d *doctor) getRules(
	ctx context.Context, role *rbacv1.ClusterRole,
) (displayName string, rules []rbacv1.PolicyRule, err error) {
	if role.Kind == "Role" {
		installed := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: role.Name, Namespace: d.operatorNamespace}}
		err := d.client.Get(ctx, client.ObjectKeyFromObject(installed), installed)

		return "Role " + d.operatorNamespace + "/" + role.Name, installed.Rules, err
	}

	installed := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role.Name}}
	err = d.client.Get(ctx, client.ObjectKeyFromObject(installed), installed)

	return "ClusterRole " + role.Name, installed.Rules, err
}
