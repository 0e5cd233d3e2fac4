// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/s3"
)

// settingsOf returns the operator's configuration with a log store.
func settingsOf(endpoint, bucket, more string) string {
	return fmt.Sprintf("apiVersion: config.hyperfleet.io/v1alpha1\nsomethingNewer: 1\nrunners:\n  logs:\n    keepIn: store\n"+
		"    store: {endpoint: %q, region: %q, bucket: %q, prefix: a/, secret: store%s}\n", endpoint, s3.Region, bucket, more)
}

// testLogStore checks that doctor tests the log store with the operator's keys, and reports errors with their fix.
func (i installation) testLogStore(t *testing.T) {
	server := s3.Start(t)
	server.CreateBucket(t, "logs")

	// keep forwards all requests except deletions, as for keys that can only write.
	upstream, err := url.Parse(server.URL)
	must.Do(t, err)

	proxy := httputil.NewSingleHostReverseProxy(upstream)
	keep := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")

			return
		}

		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(keep.Close)

	unused := "http://" + loopback.Address(t)

	for name, tc := range map[string]struct{ settings, secret, want string }{
		"works":         {settings: settingsOf(server.URL, "logs", ""), secret: s3.Secret, want: "ok s3://logs/a/hyperfleet-doctor.txt was written, read and deleted"},
		"no bucket":     {settings: settingsOf(server.URL, "none", ""), secret: s3.Secret, want: "problem cannot write logs: write s3://none/a/hyperfleet-doctor.txt at " + server.URL + ": NoSuchBucket: the bucket does not exist: create it, or use another bucket"},
		"another key":   {settings: settingsOf(server.URL, "logs", ""), secret: "another", want: "SignatureDoesNotMatch: the secret access key is wrong"},
		"no keys":       {settings: settingsOf(server.URL, "logs", ""), want: "problem cannot write logs: read credentials of log store: "},
		"no server":     {settings: settingsOf(unused, "logs", ""), secret: s3.Secret, want: "warning not reachable from here: "},
		"own authority": {settings: settingsOf(server.URL, "logs", ", caFile: /etc/ca.pem"), secret: s3.Secret, want: "warning not tested: the CA file /etc/ca.pem of the store"},
		"in cluster":    {settings: "runners: {logs: {keepIn: cluster}}"},
		"not YAML":      {settings: "runners: [", want: "problem parse operator.yaml of ConfigMap "},
		"not installed": {},
	} {
		t.Run(name, func(t *testing.T) {
			if got := i.storeFindings(t, tc.settings, tc.secret); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("doctor says %q, want %q", got, tc.want)
			} else if strings.Contains(got, s3.Secret) {
				t.Error("doctor prints the secret access key")
			}

			if left := server.ReadObjects(t, "logs"); len(left) > 0 {
				t.Errorf("left in the store: %v", left)
			}
		})
	}

	t.Run("keys that do not delete", func(t *testing.T) {
		want := "ok logs can be written; test object s3://logs/a/hyperfleet-doctor.txt remains in the store"
		if got := i.storeFindings(t, settingsOf(keep.URL, "logs", ""), s3.Secret); !strings.Contains(got, want) {
			t.Errorf("doctor says %q, want %q", got, want)
		}
	})
}

// storeFindings returns the findings about the log store of an operator in its own namespace.
func (i installation) storeFindings(t *testing.T, settings, secret string) string {
	t.Helper()

	namespace := i.Namespace(t)

	if settings != "" {
		i.Create(t, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hyperfleet-runners"}, Data: map[string]string{"operator.yaml": settings},
		})
	}

	if secret != "" {
		i.Create(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "store"},
			StringData: map[string]string{"accessKeyId": s3.KeyID, "secretAccessKey": secret},
		})
	}

	return findingsOf(i.runDoctor(t, i.Config, "-n", namespace, "--operator-namespace", namespace), "log store")
}

// testCaches checks that doctor connects to the caches that templates name. An unreachable cache is a warning, because
// machines run without it.
func (i installation) testCaches(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { _ = listener.Close() })

	up, namespace := "http://"+listener.Addr().String(), i.Namespace(t)

	for name, cache := range map[string]map[string]any{
		"both-up": {"registryMirrors": []any{up}, "actionsCacheUrl": up + "/cache"},
		"down":    {"registryMirrors": []any{up}, "actionsCacheUrl": "http://127.0.0.1:1"},
		"up":      {"actionsCacheUrl": up},
		"without": nil,
	} {
		spec := map[string]any{
			"hypervisorClusterRef": map[string]any{"name": "pve"}, "resources": map[string]any{"cpu": int64(1), "memory": "1Gi"},
			"template": map[string]any{"proxmox": map[string]any{"templateId": int64(9000)}},
		}
		if cache != nil {
			spec["cache"] = cache
		}

		i.create(t, newObject("HypervisorMachineTemplate", namespace, name, spec))
	}

	report := i.runDoctor(t, i.Config, "-n", namespace)

	for template, want := range map[string]string{
		"both-up": "ok 2 caches are reachable", "up": "ok the cache is reachable", "without": "",
		"down": "warning cannot connect to http://127.0.0.1:1 from here: dial tcp 127.0.0.1:1: connect: connection refused: " +
			"machines that cannot reach the cache run without it",
	} {
		if got := findingsOf(report, "caches of HypervisorMachineTemplate "+namespace+"/"+template); got != want {
			t.Errorf("of template %s: %q, want %q", template, got, want)
		}
	}
}

// testReceiver checks the finding about plain HTTP, and about the Ingress that terminates TLS.
func (i installation) testReceiver(t *testing.T) {
	const (
		subject = "webhooks and machines"
		byTLS   = "ok the operator serves TLS"
		inward  = "ok plain HTTP behind Ingress hyperfleet-system/hyperfleet-webhooks, which terminates TLS"
		open    = "warning the operator serves plain HTTP (webhooks.plainHTTP of hyperfleet-runners), and no Ingress in " +
			"namespace hyperfleet-system terminates TLS in front of it: remove the setting, or terminate TLS in front of the operator"
	)

	expectFinding := func(want string) {
		t.Helper()

		if got := findingsOf(i.runDoctor(t, i.Config), subject); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}

	meta := metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: "hyperfleet-runners"}

	settings := &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"operator.yaml": "webhooks: {bindAddress: ':8443'}"}}
	i.create(t, settings)
	expectFinding(byTLS)

	settings.Data["operator.yaml"] = "webhooks: {plainHTTP: true}"
	must.Do(t, i.Client.Update(t.Context(), settings))
	expectFinding(open)

	// The environment variable of the pods overrides the file.
	labels := map[string]string{"app": "operator"}
	pods := &appsv1.Deployment{ObjectMeta: meta}
	pods.Spec.Replicas = new(int32) // no pod is expected to be ready
	pods.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	pods.Spec.Template.Labels = labels
	pods.Spec.Template.Spec.Containers = []corev1.Container{{
		Name: "operator", Image: "hyperfleet", Env: []corev1.EnvVar{{Name: "HYPERFLEET_WEBHOOKS_PLAIN_HTTP", Value: "false"}},
	}}
	i.create(t, pods)
	expectFinding(byTLS)

	pods.Spec.Template.Spec.Containers[0].Env[0].Value = "true"
	must.Do(t, i.Client.Update(t.Context(), pods))

	kind := networkingv1.PathTypePrefix
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: meta.Namespace, Name: "hyperfleet-webhooks"}}
	ingress.Spec.Rules = []networkingv1.IngressRule{{Host: "hyperfleet.example.com"}}
	ingress.Spec.Rules[0].HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &kind, Backend: networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "hyperfleet-webhooks", Port: networkingv1.ServiceBackendPort{Name: "webhooks"}},
	}}}}
	i.create(t, ingress)
	expectFinding(open)

	ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"hyperfleet.example.com"}}}
	must.Do(t, i.Client.Update(t.Context(), ingress))
	expectFinding(inward)
}
