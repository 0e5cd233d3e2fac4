// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// unreadyPolicy is a policy for the ConfigMaps of a namespace whose parameters are of a kind that is not installed.
func unreadyPolicy(name string) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	meta := metav1.ObjectMeta{Name: name}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: new(admissionv1.Fail),
		ParamKind:     &admissionv1.ParamKind{APIVersion: name + ".example.com/v1", Kind: "Limit"},
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}}},
		},
		Validations: []admissionv1.Validation{{Expression: "true"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		ParamRef: &admissionv1.ParamRef{
			Selector: &metav1.LabelSelector{}, ParameterNotFoundAction: new(admissionv1.AllowAction),
		},
	}}

	return policy, binding
}

func limitCRD(name string) *apiextensionsv1.CustomResourceDefinition {
	group := name + ".example.com"

	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "limits." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "limits", Kind: "Limit", ListKind: "LimitList", Singular: "limit"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}

// An API server says that an object is invalid as long as it has not read the parameters of an admission policy. Our
// clients repeat the write, and otherwise treat the refusal like an outage of the server.
func TestUnreadyAdmissionIsRetried(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	policy, binding := unreadyPolicy(namespace)
	configMap := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "a-"}}
	}

	scheme := runtime.NewScheme()
	must.Do(t, clientgoscheme.AddToScheme(scheme))
	must.Do(t, apiextensionsv1.AddToScheme(scheme))

	ours, err := client.New(env.Config, client.Options{Scheme: scheme})
	must.Do(t, err)

	config := rest.CopyConfig(env.Config)
	config.WrapTransport = nil
	plain, err := client.New(config, client.Options{Scheme: scheme})
	must.Do(t, err)

	for _, object := range []client.Object{policy, binding} {
		must.Do(t, ours.Create(t.Context(), object))
		t.Cleanup(func() { _ = ours.Delete(context.WithoutCancel(t.Context()), object) })
	}

	timing.WaitUntil(t, "the policy is not ready", func() bool {
		err := plain.Create(t.Context(), configMap(), client.DryRunAll)
		if err != nil && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "paramKind")) {
			t.Fatalf("the API server refuses an object with %v", err)
		}

		return err != nil
	})

	start, created := time.Now(), make(chan error, 1)

	go func() {
		for {
			err := ours.Create(t.Context(), configMap())
			if err == nil || !apierrors.IsServiceUnavailable(err) {
				created <- err

				return
			}
		}
	}()

	must.Do(t, ours.Create(t.Context(), limitCRD(namespace)))

	if err := <-created; err != nil {
		t.Errorf("create an object while the policy is not ready: %v", err)
	}

	t.Logf("the API server needed %s after the CRD", time.Since(start).Round(time.Second))
}
