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
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/deploy"
)

// areaOf is the area whose operator reconciles a kind, by the plural of its name.
func areaOf(plural string) string {
	switch plural {
	case "dnsregistrations", "kubevirtnodepools", "kubevirtmachinetemplates", "kubevirtmachines":
		return config.AreaNetworking
	case "hostfleets", "linuxmachines", "scalewayapplesiliconmachines":
		return config.AreaHosts
	case "dpfhcpbridges":
		return config.AreaBridge
	default:
		return config.AreaRunners
	}
}

type kind = apiextensionsv1.CustomResourceDefinition

// known are the kinds that this program was built with, by area.
func known() (map[string][]*kind, error) {
	files, err := fs.Glob(deploy.CRDs, "crds/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the kinds: %w", err)
	}

	out := map[string][]*kind{}

	for _, file := range files {
		text, err := deploy.CRDs.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the kinds: %w", err)
		}

		crd := &kind{}
		if err := sigsyaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}

		area := areaOf(crd.Spec.Names.Plural)
		out[area] = append(out[area], crd)
	}

	return out, nil
}

// kinds looks whether the kinds of an area are installed, and gives those that are.
func (d *doctor) kinds(ctx context.Context, area string, want []*kind) []*kind {
	subject := "kinds of " + area

	var (
		there           []*kind
		missing, differ []string
	)

	for _, crd := range want {
		got := &kind{}
		err := d.client.Get(ctx, client.ObjectKeyFromObject(crd), got)

		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, crd.Name)

			continue
		case err != nil:
			// It is said once: who may not read one may read none.
			if !apierrors.IsForbidden(err) || !d.blind {
				d.unseen("kinds", err)
			}

			d.blind = true

			// They may be there all the same.
			return want
		}

		there = append(there, crd)

		if !apihelpers.IsCRDConditionTrue(got, apiextensionsv1.Established) ||
			!apiequality.Semantic.DeepEqual(got.Spec.Versions, crd.Spec.Versions) {
			differ = append(differ, crd.Name)
		}
	}

	switch {
	case len(there) == 0:
		d.report.addf(Warning, subject, "none is installed, and the area is off: if it is wanted, "+fixKinds)
	case len(missing) > 0:
		d.report.addf(Problem, subject, "%s missing: %s", strings.Join(missing, ", "), fixKinds)
	case len(differ) > 0:
		d.report.addf(Warning, subject, "installed in another form than this program (hyperfleet version) knows: %s: "+
			"run the operator's own version of it, or %s", strings.Join(differ, ", "), fixKinds)
	default:
		d.report.addf(Fine, subject, "%d installed, as this program knows them", len(there))
	}

	return there
}

// fixKinds is how the kinds come in.
const fixKinds = "kubectl apply --server-side -f hyperfleet-crds.yaml of the release, or its chart hyperfleet-crds"

// fixArea is how an operator that runs an area comes in, with its roles.
func fixArea(area string) string {
	file := "hyperfleet.yaml"
	if area == config.AreaBridge {
		file = "hyperfleet-bridge.yaml"
	}

	return "kubectl apply --server-side -f " + file + " of the release, or its chart hyperfleet with areas." + area + ".enabled"
}

// unseen notes what could not be looked at.
func (d *doctor) unseen(subject string, err error) {
	if apierrors.IsForbidden(err) {
		d.report.addf(Warning, subject, "you may not look: %v", err)

		return
	}

	d.report.addf(Problem, subject, "can't be looked at: %v", err)
}

// roles looks whether the operator's roles of an area allow what this program needs.
func (d *doctor) roles(ctx context.Context, area string) error {
	text, err := deploy.RBAC.ReadFile("rbac/" + area + ".yaml")
	if err != nil {
		return fmt.Errorf("read the roles of %s: %w", area, err)
	}

	subject, fix := "roles of "+area, fixArea(area)

	var lacking []string

	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text)); ; {
		// A Role has the same fields.
		want := &rbacv1.ClusterRole{}

		err := decoder.Decode(want)
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			return fmt.Errorf("read the roles of %s: %w", area, err)
		}

		name, got, err := d.role(ctx, want)

		switch {
		case apierrors.IsNotFound(err):
			d.report.addf(Problem, subject, "%s is missing: %s", name, fix)

			return nil
		case err != nil:
			d.unseen(subject, err)

			return nil
		case !apiequality.Semantic.DeepEqual(got, want.Rules):
			lacking = append(lacking, name)
		}
	}

	if len(lacking) > 0 {
		d.report.addf(Warning, subject, "other than this program (hyperfleet version) has them: %s: "+
			"run the operator's own version of it, or %s", strings.Join(lacking, ", "), fix)
	} else {
		d.report.addf(Fine, subject, "as this program has them")
	}

	return nil
}

// role gives the rules of an installed Role or ClusterRole, and its name in words.
func (d *doctor) role(ctx context.Context, want *rbacv1.ClusterRole) (string, []rbacv1.PolicyRule, error) {
	if want.Kind == "Role" {
		got := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: want.Name, Namespace: d.operator}}
		err := d.client.Get(ctx, client.ObjectKeyFromObject(got), got)

		return "Role " + d.operator + "/" + want.Name, got.Rules, err
	}

	got := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: want.Name}}
	err := d.client.Get(ctx, client.ObjectKeyFromObject(got), got)

	return "ClusterRole " + want.Name, got.Rules, err
}
