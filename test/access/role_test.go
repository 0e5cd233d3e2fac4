// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	samples = "../../deploy/samples/platform/"
	// system is the namespace of the samples' service accounts.
	system = "hyperfleet-system"
)

// permission is one verb for the objects of one kind.
type permission struct{ group, resource, verb string }

// forbiddenMessage returns the message of the API server for an account without the permission (k8s.io/apiserver,
// endpoints/handlers/responsewriters/errors.go).
func (g permission) forbiddenMessage() string {
	return fmt.Sprintf("cannot %s resource %q in API group %q", g.verb, g.resource, g.group)
}

func (g permission) String() string {
	return strings.TrimPrefix(g.verb+" "+g.resource+"."+g.group, " ")
}

// accountRoles has the service account and the roles in one sample's file.
type accountRoles struct {
	file    string
	account string
	cluster *rbacv1.ClusterRole
	own     *rbacv1.Role
}

// readRoles reads a sample's file, and checks the account and the bindings of its roles.
func readRoles(t *testing.T, file string) *accountRoles {
	t.Helper()

	objects, err := kubeproc.ReadObjects(samples + file)
	if err != nil {
		t.Fatal(err)
	}

	out := &accountRoles{file: file}

	for _, object := range objects {
		switch object.GetKind() {
		case "ServiceAccount":
			out.account = object.GetName()
		case "ClusterRole":
			out.cluster = convert[rbacv1.ClusterRole](t, object)
		case "Role":
			out.own = convert[rbacv1.Role](t, object)
		case "ClusterRoleBinding":
			checkBinding(t, out, convert[rbacv1.ClusterRoleBinding](t, object).Subjects, convert[rbacv1.ClusterRoleBinding](t, object).RoleRef)
		case "RoleBinding":
			checkBinding(t, out, convert[rbacv1.RoleBinding](t, object).Subjects, convert[rbacv1.RoleBinding](t, object).RoleRef)
		default:
			t.Errorf("%s has an unexpected %s", file, object.GetKind())
		}

		if object.GetName() != out.account {
			t.Errorf("%s: %s %s is not named after the account %s", file, object.GetKind(), object.GetName(), out.account)
		}
	}

	for _, g := range out.permissions() {
		if strings.Contains(g.String(), "*") {
			t.Errorf("%s: wildcard in %s", file, g)
		}
	}

	return out
}

// checkBinding checks that a binding binds the role with the name of the account to the account.
func checkBinding(t *testing.T, a *accountRoles, subjects []rbacv1.Subject, role rbacv1.RoleRef) {
	t.Helper()

	if len(subjects) != 1 || subjects[0].Name != a.account || subjects[0].Namespace != system || role.Name != a.account {
		t.Errorf("%s binds role %s to %v", a.file, role.Name, subjects)
	}
}

// convert converts an object to its Go type.
func convert[T any](t *testing.T, object *unstructured.Unstructured) *T {
	t.Helper()

	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}

	return typed
}

// permissions returns all permissions of the roles.
func (a *accountRoles) permissions() []permission {
	rules := slices.Clone(a.cluster.Rules)
	if a.own != nil {
		rules = append(rules, a.own.Rules...)
	}

	var out []permission

	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					out = append(out, permission{group, resource, verb})
				}
			}
		}
	}

	return out
}

// removePermission returns the rules without the permission.
func removePermission(rules []rbacv1.PolicyRule, g permission) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule

	for _, rule := range rules {
		rule = *rule.DeepCopy()
		if slices.Contains(rule.APIGroups, g.group) && slices.Contains(rule.Resources, g.resource) {
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == g.verb })
		}

		if len(rule.Verbs) > 0 {
			out = append(out, rule)
		}
	}

	return out
}

// createAccount creates an account that has the roles without one permission, and returns the configuration of its
// client.
func (a *accountRoles) createAccount(t *testing.T, name string, lacks permission) *rest.Config {
	t.Helper()

	config := env.ServiceAccount(t, system, name)
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: system}}
	meta := metav1.ObjectMeta{Name: name}
	objects := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: removePermission(a.cluster.Rules, lacks)},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		},
	}

	if a.own != nil {
		meta.Namespace = system
		objects = append(objects,
			&rbacv1.Role{ObjectMeta: meta, Rules: removePermission(a.own.Rules, lacks)},
			&rbacv1.RoleBinding{
				ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			})
	}

	for _, object := range objects {
		if err := env.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}

	return config
}
