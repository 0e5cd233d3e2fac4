// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/property"
)

// weakening removes one protection from a pod.
type weakening struct {
	name string
	do   func(*corev1.PodSpec)
}

func listWeakenings() []weakening {
	inContainer := func(change func(*corev1.SecurityContext)) func(*corev1.PodSpec) {
		return func(pod *corev1.PodSpec) { change(pod.Containers[0].SecurityContext) }
	}
	yes, no, root := true, false, int64(0)

	return []weakening{
		{"privileged", inContainer(func(c *corev1.SecurityContext) { c.Privileged, c.AllowPrivilegeEscalation = &yes, &yes })},
		{"privilege escalation", inContainer(func(c *corev1.SecurityContext) { c.AllowPrivilegeEscalation = &yes })},
		{"all capabilities", inContainer(func(c *corev1.SecurityContext) { c.Capabilities = nil })},
		{"added capability", inContainer(func(c *corev1.SecurityContext) {
			c.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}
		})},
		{"no seccomp", func(p *corev1.PodSpec) { p.SecurityContext.SeccompProfile = nil }},
		{"unconfined seccomp", inContainer(func(c *corev1.SecurityContext) {
			c.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		})},
		{"root allowed", func(p *corev1.PodSpec) { p.SecurityContext.RunAsNonRoot = &no }},
		{"root", func(p *corev1.PodSpec) { p.SecurityContext.RunAsUser = &root }},
		{"host network", func(p *corev1.PodSpec) { p.HostNetwork = true; p.Containers[0].Ports = nil }},
		{"host processes", func(p *corev1.PodSpec) { p.HostPID = true }},
		{"host folder", func(p *corev1.PodSpec) {
			p.Volumes[1].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		}},
	}
}

// newOperatorPod returns the pod of the Deployment.
func newOperatorPod(t testing.TB, objects []*unstructured.Unstructured) *corev1.Pod {
	t.Helper()

	template := findObject[appsv1.Deployment](t, objects, "Deployment", operatorName).Spec.Template.DeepCopy()

	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.GenerateName = operatorSpace, "operator-"

	return pod
}

// Feature: hyperfleet-operator, Property 17: RBAC and Security Context
//
// Kubernetes' own restricted profile admits the operator's pod to its namespace, and rejects the pod if any
// protections are removed.
func TestProperty17SecurityContext(t *testing.T) {
	t.Parallel()

	objects := applyBase(t)
	all := listWeakenings()

	property.Check(t, "only the full protection is admitted", property.Options{Workers: 4}, prop.ForAll(func(chosen []bool) string {
		pod := newOperatorPod(t, objects)
		weaker := []string{}

		for i, weakening := range all {
			if chosen[i] {
				weakening.do(&pod.Spec)
				weaker = append(weaker, weakening.name)
			}
		}

		err := env.Client.Create(t.Context(), pod, client.DryRunAll)

		switch {
		case len(weaker) == 0 && err != nil:
			return "the operator's pod is rejected: " + err.Error()
		case len(weaker) > 0 && err == nil:
			return "admitted without: " + strings.Join(weaker, ", ")
		case len(weaker) > 0 && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err):
			return "failed for another reason: " + err.Error()
		default:
			return ""
		}
	}, gen.SliceOfN(len(all), gen.Frequency(map[int]gopter.Gen{5: gen.Const(false), 1: gen.Const(true)}))))

	for _, weakening := range all {
		pod := newOperatorPod(t, objects)
		weakening.do(&pod.Spec)

		if err := env.Client.Create(t.Context(), pod, client.DryRunAll); err == nil {
			t.Errorf("admitted: %s", weakening.name)
		}
	}
}

// Feature: hyperfleet-operator, Property 17: RBAC and Security Context
//
// The restricted profile also admits the pod of the chart that drains machines before the release is uninstalled.
func TestProperty17DrainPod(t *testing.T) {
	t.Parallel()

	_, text, _ := strings.Cut(readText(t, "../../deploy/charts/hyperfleet/templates/drain.yaml"), "(tpl `\n")
	text, _, _ = strings.Cut(text, "\n`")
	text = regexp.MustCompile(`(?m)^ *(imagePullSecrets|imagePullPolicy): .*\n`).ReplaceAllString(text, "")

	var job batchv1.Job
	if err := yaml.UnmarshalStrict([]byte(regexp.MustCompile(`\{\{.*?\}\}`).ReplaceAllString(text, "x")), &job); err != nil {
		t.Fatal(err)
	}

	pod := newOperatorPod(t, applyBase(t))
	account := pod.Spec.ServiceAccountName
	pod.Spec = job.Spec.Template.Spec
	pod.Spec.ServiceAccountName = account

	if err := env.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Error(err)
	}
}

// Feature: hyperfleet-operator, Property 17: RBAC and Security Context
//
// The operator's container is stricter than the restricted profile requires.
func TestProperty17Container(t *testing.T) {
	t.Parallel()

	pod := newOperatorPod(t, buildKustomization(t, baseDir)).Spec

	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		security := container.SecurityContext

		for name, holds := range map[string]bool{
			"read-only root file system": security.ReadOnlyRootFilesystem != nil && *security.ReadOnlyRootFilesystem,
			"all capabilities dropped":   slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}),
			"no added capabilities":      len(security.Capabilities.Add) == 0,
			"memory limit":               !container.Resources.Limits.Memory().IsZero(),
			"requests":                   !container.Resources.Requests.Memory().IsZero() && !container.Resources.Requests.Cpu().IsZero(),
			"liveness probe":             container.LivenessProbe != nil,
			"readiness probe":            container.ReadinessProbe != nil,
			"no secrets in environment":  !readsSecrets(container),
		} {
			if !holds {
				t.Errorf("container %s lacks: %s", container.Name, name)
			}
		}
	}
}

func readsSecrets(container corev1.Container) bool {
	if len(container.EnvFrom) > 0 {
		return true
	}

	return slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool { return v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil })
}

// Feature: hyperfleet-operator, Property 17: RBAC and Security Context
//
// The generated roles name each verb and resource. No area can grant itself more. Outside its own namespace an
// area has only the permissions for Secrets and ConfigMaps that its work requires, and the runners and hosts
// areas cannot read any.
func TestProperty17Roles(t *testing.T) {
	t.Parallel()

	objects := buildKustomization(t, "../../deploy/rbac")

	for area, most := range map[string]struct{ powers, secrets []string }{
		"runners": {}, "hosts": {}, "networking": {secrets: []string{"create"}},
		// The area approves workers of hosted clusters, and copies the Secrets with which they join.
		"bridge": {[]string{"approve"}, []string{"create", "delete", "get", "list", "patch", "update", "watch"}},
	} {
		own := findObject[rbacv1.Role](t, objects, "Role", "hyperfleet-"+area)
		cluster := findObject[rbacv1.ClusterRole](t, objects, "ClusterRole", "hyperfleet-"+area)

		if own.Namespace != operatorSpace {
			t.Errorf("the Role of %s is in %s", area, own.Namespace)
		}

		for _, rule := range slices.Concat(cluster.Rules, own.Rules) {
			// The role with which a namespace permits the operator to read its Secrets gets a finalizer, like the Secrets. The
			// API server lets nobody write permissions into a role that they do not have.
			if slices.Equal(rule.ResourceNames, []string{"hyperfleet-secrets"}) && slices.Equal(rule.Verbs, []string{"get", "patch"}) {
				continue
			}

			for _, word := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.ResourceNames, rule.NonResourceURLs) {
				if strings.Contains(word, "*") || word == rbacv1.GroupName {
					t.Errorf("%s: %q in %v", area, word, rule)
				}
			}

			for _, verb := range []string{"escalate", "bind", "impersonate", "deletecollection", "approve", "sign"} {
				if slices.Contains(rule.Verbs, verb) && !slices.Contains(most.powers, verb) {
					t.Errorf("%s: verb %s in %v", area, verb, rule)
				}
			}
		}

		for _, rule := range cluster.Rules {
			if (slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "configmaps")) &&
				slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains(most.secrets, verb) }) {
				t.Errorf("%s, cluster-wide: %v", area, rule)
			}
		}
	}
}

// accessRequest is one access that the operator might try.
type accessRequest struct {
	group, resource, name, verb, namespace string
}

// isPossible returns whether the operator may have this permission at all. The controllers' markers decide
// which of these permissions it has.
func (r accessRequest) isPossible() bool {
	switch r.group + "/" + r.resource {
	case "hyperfleet.io/hypervisorclusters", "hyperfleet.io/hypervisormachinetemplates", "hyperfleet.io/runnerpools":
		return slices.Contains([]string{"get", "list", "watch", "update", "patch"}, r.verb)
	case "hyperfleet.io/machineclaims", "hyperfleet.io/runnerjobs", "hyperfleet.io/runnerjobbatches",
		"hyperfleet.io/runnerlogs":
		return r.verb != "deletecollection" && r.verb != "impersonate"
	case "events.k8s.io/events":
		return r.verb == "create" || r.verb == "patch"
	case "/secrets":
		// patch writes the finalizer that keeps a Secret.
		return r.namespace == operatorSpace && slices.Contains([]string{"get", "create", "patch"}, r.verb)
	case "coordination.k8s.io/leases":
		return r.namespace == operatorSpace && slices.Contains([]string{"get", "create", "update", "patch"}, r.verb)
	case "/namespaces":
		return r.verb == "get" // clusters select namespaces by labels
	default:
		return false
	}
}

// isAllowed asks the API server whether the operator's account has the permission.
func (r accessRequest) isAllowed(t testing.TB) bool {
	t.Helper()

	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   "system:serviceaccount:" + operatorSpace + ":" + operatorName,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + operatorSpace, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: r.group, Resource: r.resource, Verb: r.verb, Namespace: r.namespace, Name: r.name,
		},
	}}
	if err := env.Client.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}

	return review.Status.Allowed
}

// Feature: hyperfleet-operator, Property 17: RBAC and Security Context
//
// A real API server gives the operator's account no permission that the operator can never need.
func TestProperty17Access(t *testing.T) {
	t.Parallel()

	applyBase(t)

	resources := []any{
		"hyperfleet.io/hypervisorclusters", "hyperfleet.io/hypervisormachinetemplates", "hyperfleet.io/runnerpools",
		"hyperfleet.io/machineclaims", "hyperfleet.io/runnerjobs", "hyperfleet.io/runnerjobbatches", "hyperfleet.io/runnerlogs", "events.k8s.io/events", "coordination.k8s.io/leases",
		"/secrets", "/configmaps", "/pods", "/pods/exec", "/nodes", "/namespaces", "/serviceaccounts", "/serviceaccounts/token",
		"/users", "/groups", "apps/deployments", "batch/jobs", "rbac.authorization.k8s.io/roles",
		"rbac.authorization.k8s.io/clusterroles", "rbac.authorization.k8s.io/clusterrolebindings",
		"apiextensions.k8s.io/customresourcedefinitions", "certificates.k8s.io/certificatesigningrequests",
		"admissionregistration.k8s.io/validatingwebhookconfigurations",
	}
	verbs := []any{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "escalate", "bind", "impersonate"}
	// Other tests may have given the operator permissions in the namespaces of samples and guides.
	namespaces := []any{"", operatorSpace, "kube-system", env.Namespace(t)}

	property.Check(t, "no more than the job needs", property.Options{Runs: 500, Brief: 150, Workers: 4}, prop.ForAll(func(resource, verb, namespace, name string) string {
		group, kind, _ := strings.Cut(resource, "/")
		read := accessRequest{group: group, resource: kind, name: name, verb: verb, namespace: namespace}

		if read.isAllowed(t) && !read.isPossible() {
			return fmt.Sprintf("allowed: %+v", read)
		}

		return ""
	}, gen.OneConstOf(resources...), gen.OneConstOf(verbs...), gen.OneConstOf(namespaces...), gen.OneConstOf("", "some", operatorSpace)))
}

// The operator can read Secrets of another namespace only after deploy/namespace-secrets is applied to it.
func TestNamespaceSecrets(t *testing.T) {
	t.Parallel()

	applyBase(t)

	namespace := env.Namespace(t)
	read := accessRequest{resource: "secrets", name: "github", verb: "get", namespace: namespace}

	if read.isAllowed(t) {
		t.Fatal("readable without a role")
	}

	for _, object := range buildKustomization(t, "../../deploy/namespace-secrets") {
		object.SetNamespace(namespace)

		if err := newStrictClient().Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}

	// The authorizer learns about new roles from a watch.
	if !waitUntil(t, func() bool { return read.isAllowed(t) }) {
		t.Error("not readable with the role")
	}

	for _, verb := range []string{"list", "watch", "update", "delete"} {
		more := read
		more.verb = verb

		if more.isAllowed(t) {
			t.Errorf("the operator may %s Secrets", verb)
		}
	}
}

// waitUntil polls until the condition is true, at most for a minute.
func waitUntil(t testing.TB, holds func() bool) bool {
	t.Helper()

	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })

	return err == nil
}
