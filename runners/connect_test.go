// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/test/heap"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// If the owner of a Secret withdraws a permission, the operator closes the connection that uses the Secret.
func TestConnectionClosesWithoutPermission(t *testing.T) {
	t.Parallel()

	for reason, annotation := range map[string]string{
		credential.ReasonServerNotAllowed: v1alpha1.AnnotationAllowedServers,
		"SecretNotAllowed":                v1alpha1.AnnotationAllowedNamespaces,
	} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "secrets", Annotations: map[string]string{
				v1alpha1.AnnotationAllowedServers: "pve.example:8006", v1alpha1.AnnotationAllowedNamespaces: "system",
			}},
			Data: map[string][]byte{"id": []byte("id"), "secret": []byte("s3cret")},
		}
		api := fake.NewClientBuilder().WithObjects(secret).Build()
		hv := &fakeHypervisor{}
		clusters, cluster := hv.newClusters(api, "system"), newCluster("c")
		cluster.Spec.Credentials.TokenID.SecretKeyRef.Namespace = "team"
		cluster.Spec.Credentials.TokenSecret.SecretKeyRef.Namespace = "team"

		if _, err := clusters.Ensure(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}

		secret.Annotations[annotation] = "another.example.com"
		if err := api.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}

		if _, err := clusters.Ensure(t.Context(), cluster); errclass.ReasonOf(err, "") != reason {
			t.Errorf("after %s was narrowed: error %v, want reason %s", annotation, err, reason)
		}

		if _, there := clusters.Get("c"); there || hv.openConnections != 0 {
			t.Errorf("after %s was narrowed: connected: %t, open connections: %d", annotation, there, hv.openConnections)
		}
	}
}

// A connection is kept until the spec or a Secret of its cluster changes. Then a new one replaces it.
func TestConnectionIsKeptUntilAChange(t *testing.T) {
	t.Parallel()

	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "secrets"},
		Data:       map[string][]byte{"id": []byte("id"), "secret": []byte("s3cret")},
	}
	api := fake.NewClientBuilder().WithObjects(secret).Build()
	hv := &fakeHypervisor{}
	clusters, cluster := hv.newClusters(api, "system"), newCluster("c")
	open := clusters.Factories[v1alpha1.ProviderProxmox]

	var made []hypervisor.Config

	clusters.Factories[v1alpha1.ProviderProxmox] = func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
		made = append(made, config)

		return open(config, options)
	}

	for i, change := range []func(){
		func() {},
		func() { cluster.Spec.DefaultStorage = "ceph" },
		func() {
			secret.Data["secret"] = []byte("rotated")
			if err := api.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		},
	} {
		change()

		for range 3 {
			if _, err := clusters.Ensure(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
		}

		if len(made) != i+1 || hv.openConnections != 1 {
			t.Fatalf("%d connections were made after %d changes, and %d are open", len(made), i, hv.openConnections)
		}
	}

	if last := made[2]; last.DefaultStorage != "ceph" || last.Credentials.TokenSecret != "rotated" {
		t.Errorf("the last connection has the storage %s and the secret %s", last.DefaultStorage, last.Credentials.TokenSecret)
	}
}

// The provider of a cluster is the one that its spec names.
func TestProviderIsTheNamedOne(t *testing.T) {
	t.Parallel()

	hv, other := &fakeHypervisor{}, &fakeHypervisor{}
	clusters := hv.newClusters(fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "secrets"},
		Data:       map[string][]byte{"id": []byte("id"), "secret": []byte("s3cret")},
	}).Build(), "system")
	clusters.Factories["other"] = func(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) { return other, nil }

	for provider, want := range map[string]hypervisor.Provider{v1alpha1.ProviderProxmox: hv, "other": other} {
		cluster := newCluster(provider)
		cluster.Spec.Provider = provider

		if got, err := clusters.Ensure(t.Context(), cluster); err != nil || got != want {
			t.Errorf("provider %s: %v, %v", provider, got, err)
		}
	}

	unknown := newCluster("c")
	unknown.Spec.Provider = "none"

	if _, err := clusters.Ensure(t.Context(), unknown); errclass.ReasonOf(err, "") != "ProviderUnknown" {
		t.Errorf("an unknown provider: %v", err)
	}
}

// The credentials of a cluster are the values of its Secrets.
func TestCredentialsAreThoseOfTheSecrets(t *testing.T) {
	t.Parallel()

	pair := httptest.NewTLSServer(nil)
	pair.Close()

	certificate := pair.TLS.Certificates[0]

	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}

	for name, tc := range map[string]struct {
		kind corev1.SecretType
		data map[string][]byte
		from v1alpha1.HypervisorCredentials
		want hypervisor.Credentials
		// hasCertificate is true if the connection has the client certificate.
		hasCertificate bool
	}{
		"password": {
			kind: corev1.SecretTypeOpaque, data: map[string][]byte{"username": []byte("ci@pve"), "password": []byte("s3cret\n")},
			from: v1alpha1.HypervisorCredentials{Username: newSecretSource("username"), Password: newSecretSource("password")},
			want: hypervisor.Credentials{Username: "ci@pve", Password: "s3cret"},
		},
		"token": {
			kind: corev1.SecretTypeOpaque, data: map[string][]byte{"tokenId": []byte("ci@pve!fleet"), "tokenSecret": []byte("s3cret")},
			from: v1alpha1.HypervisorCredentials{TokenID: newSecretSource("tokenId"), TokenSecret: newSecretSource("tokenSecret")},
			want: hypervisor.Credentials{TokenID: "ci@pve!fleet", TokenSecret: "s3cret"},
		},
		"client certificate": {
			kind: corev1.SecretTypeTLS, data: map[string][]byte{
				corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
				corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
			},
			from: v1alpha1.HypervisorCredentials{
				ClientCert: newSecretSource(corev1.TLSCertKey), ClientKey: newSecretSource(corev1.TLSPrivateKeyKey),
			},
			hasCertificate: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got hypervisor.Config

			hv := &fakeHypervisor{}
			clusters := hv.newClusters(fake.NewClientBuilder().WithObjects(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "secrets"}, Type: tc.kind, Data: tc.data,
			}).Build(), "system")
			clusters.Factories[v1alpha1.ProviderProxmox] = func(config hypervisor.Config, _ hypervisor.Options) (hypervisor.Connection, error) {
				got = config

				return hv, nil
			}

			cluster := newCluster("c")
			cluster.Spec.Credentials = tc.from

			if _, err := clusters.Ensure(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}

			if got.Credentials != tc.want {
				t.Errorf("connected with %+v, want %+v", got.Credentials, tc.want)
			}

			if has := len(got.TLS.Certificates) == 1 && bytes.Equal(got.TLS.Certificates[0].Certificate[0], certificate.Certificate[0]); has != tc.hasCertificate {
				t.Errorf("connected with %d certificates; with the one of the Secret: %t, want %t", len(got.TLS.Certificates), has, tc.hasCertificate)
			}
		})
	}
}

// Ten thousand clusters that were created and deleted leave no memory allocated.
func TestConnectionsOfDeletedClustersAreFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	hv := &fakeHypervisor{}
	clusters := hv.newClusters(fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "secrets"},
		Data:       map[string][]byte{"id": []byte("id"), "secret": []byte("s3cret")},
	}).Build(), "system")

	heap.CheckNoLeak(t, "connections", func(number int) {
		cluster := newCluster(fmt.Sprintf("c%d", number))
		if _, err := clusters.Ensure(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}

		clusters.Forget(cluster.Name)

		if _, there := clusters.Get(cluster.Name); there {
			t.Fatal("a deleted cluster has a connection")
		}
	})

	if hv.openConnections != 0 {
		t.Errorf("%d connections are open", hv.openConnections)
	}
}

// For a Secret of another namespace the operator reads the metadata first. It reads the values only if the
// Secret allows the namespace to use them.
func TestSecretIsReadOnlyIfAllowed(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		allowed, from string
		reads         int
		reason        string
	}{
		"its own namespace": {"", "platform", 1, ""},
		"a shared one":      {"team-a, team-b", "team-b", 1, ""},
		"another's":         {"", "team-a", 0, "SecretNotAllowed"},
		"one of others":     {"team-b", "team-a", 0, "SecretNotAllowed"},
	} {
		reads := 0
		reader := interceptor.NewClient(fake.NewClientBuilder().WithObjects(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "platform", Name: "token", Annotations: map[string]string{v1alpha1.AnnotationAllowedNamespaces: tt.allowed},
			},
			Data: map[string][]byte{"key": []byte("value\n")}, // as kubectl create secret --from-file stores a file
		}).Build(), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
				if _, whole := into.(*corev1.Secret); whole {
					reads++
				}

				return c.Get(ctx, key, into, opts...)
			},
		})
		secrets := &connect.Secrets{Reader: reader}

		value, err := secrets.ReadValue(t.Context(), v1alpha1.SecretKeySelector{Namespace: "platform", Name: "token", Key: "key"}, tt.from)
		if reads != tt.reads || errclass.ReasonOf(err, "") != tt.reason || (value == "value") != (tt.reason == "") {
			t.Errorf("%s: %d reads, %q, error %v", name, reads, value, err)
		}
	}
}

// A missing Secret, and a missing key, count as empty if the reference is optional, and are an error otherwise.
func TestMissingOptionalSecretIsEmpty(t *testing.T) {
	t.Parallel()

	secrets := &connect.Secrets{Reader: fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "token"}, Data: map[string][]byte{"key": []byte("value")},
	}).Build()}

	for _, optional := range []bool{false, true} {
		for _, ref := range []v1alpha1.SecretKeySelector{{Name: "token", Key: "other"}, {Name: "other", Key: "key"}} {
			ref.Namespace, ref.Optional = "ci", &optional

			value, err := secrets.ReadValue(t.Context(), ref, "ci")
			if value != "" || (err == nil) != optional {
				t.Errorf("optional %t, %s/%s: %q, %v", optional, ref.Name, ref.Key, value, err)
			}

			if text := fmt.Sprint(err); !optional && (!strings.Contains(text, "secret ci/"+ref.Name) || !strings.Contains(text, strconv.Quote(ref.Key))) {
				t.Errorf("the error does not name key %s of Secret %s: %s", ref.Key, ref.Name, text)
			}
		}
	}
}

// A namespace without access to a Secret of another namespace cannot find out whether the Secret exists,
// whichever key it requests.
func TestForbiddenSecretLooksMissing(t *testing.T) {
	t.Parallel()

	secrets := &connect.Secrets{OperatorNamespace: "operator", Reader: fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "platform", Name: "secret-a"}, Data: map[string][]byte{"key": []byte("value")},
	}).Build()}

	for _, optional := range []bool{false, true} {
		errorTexts := map[string]bool{}

		for _, name := range []string{"secret-a", "secret-b"} {
			for _, key := range []string{"key", "other"} {
				value, err := secrets.ReadValue(t.Context(),
					v1alpha1.SecretKeySelector{Namespace: "platform", Name: name, Key: key, Optional: &optional}, "team-a")
				errorTexts[strings.ReplaceAll(fmt.Sprint(value, errclass.ReasonOf(err, ""), err), name, "NAME")] = true
			}
		}

		if len(errorTexts) != 1 {
			t.Errorf("optional %t: the errors differ: %v", optional, errorTexts)
		}
	}

	if _, err := secrets.ReadValue(t.Context(), v1alpha1.SecretKeySelector{Namespace: "platform", Name: "secret-b", Key: "key"}, ""); !credential.IsMissing(err) {
		t.Errorf("an administrator gets no error about the missing Secret: %v", err)
	}
}

const kubeconfigText = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}],
clusters: [{name: c, cluster: {server: "https://hypervisor.example.com"}}]}`

// The operator sends the credential of a hypervisor only to servers that the Secret allows. Without a list
// of servers, only the server in the same Secret or in the kubeconfig is allowed.
func TestCredentialsAreSentOnlyToAllowedServers(t *testing.T) {
	t.Parallel()

	ref := v1alpha1.SecretKeySelector{Name: "s", Key: "value"}
	source := &v1alpha1.SecretValueSource{SecretKeyRef: ref}
	endpoint := func(c v1alpha1.HypervisorCredentials) v1alpha1.HypervisorClusterSpec {
		return v1alpha1.HypervisorClusterSpec{Provider: v1alpha1.ProviderProxmox, Endpoint: "https://hypervisor.example.com/api", Credentials: c}
	}

	for name, spec := range map[string]v1alpha1.HypervisorClusterSpec{
		"token":              endpoint(v1alpha1.HypervisorCredentials{TokenID: source, TokenSecret: source}),
		"password":           endpoint(v1alpha1.HypervisorCredentials{Username: source, Password: source}),
		"client certificate": endpoint(v1alpha1.HypervisorCredentials{ClientCert: source, ClientKey: source}),
		"kubeconfig":         {Provider: v1alpha1.ProviderProxmox, KubeVirt: &v1alpha1.KubeVirtCluster{KubeconfigSecretRef: &ref}},
		"external provider": {
			Provider: v1alpha1.ProviderProxmox, Credentials: v1alpha1.HypervisorCredentials{ClientCert: source, ClientKey: source},
			External: &v1alpha1.ExternalProvider{Address: "hypervisor.example.com:443"},
		},
		"SSH key": {
			Provider: v1alpha1.ProviderProxmox, Credentials: v1alpha1.HypervisorCredentials{SSHPrivateKey: source},
			Libvirt: &v1alpha1.LibvirtCluster{Hosts: []v1alpha1.LibvirtHost{
				{Name: "unix", URI: "qemu+unix:///system"}, {Name: "ssh", URI: "qemu+ssh://ci@hypervisor.example.com:443/system"},
			}},
		},
	} {
		for list, allowed := range map[string]bool{
			"none": true, "hypervisor.example.com": true, "other.example.com, hypervisor.example.com:443": true,
			"other.example.com": false, "hypervisor.example.com:8443": false, "": false,
		} {
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "s"}, Data: map[string][]byte{"value": []byte(kubeconfigText)},
			}
			if list != "none" {
				secret.Annotations = map[string]string{v1alpha1.AnnotationAllowedServers: list}
			}

			hv := &fakeHypervisor{}
			clusters := hv.newClusters(fake.NewClientBuilder().WithObjects(secret).Build(), "system")

			_, err := clusters.Ensure(t.Context(), &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec})
			if refused := errclass.ReasonOf(err, "") == credential.ReasonServerNotAllowed; refused == allowed || refused && hv.openConnections > 0 {
				t.Errorf("%s, list %q: error %v, %d connections, want allowed %v", name, list, err, hv.openConnections, allowed)
			}
		}
	}
}

// providerFixture creates providers of a CI platform, with the credentials of any template.
type providerFixture struct {
	*connect.Workloads

	platform *fakePlatform
	clock    *clocktesting.FakeClock
}

func newProviderFixture() *providerFixture {
	s := &providerFixture{platform: &fakePlatform{Platform: github.NewPlatform()}, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	s.Workloads = &connect.Workloads{
		Clock: s.clock, Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: s.platform},
		Secrets: &connect.Secrets{Reader: fake.NewClientBuilder().WithObjects(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "secrets"}, Data: map[string][]byte{"token": []byte("ghp_x")},
		}).Build()},
	}

	return s
}

// getProvider gets the provider of the numbered template, and returns how many providers were created for the
// call.
func (s *providerFixture) getProvider(t *testing.T, number int) int {
	t.Helper()

	template := newTemplate("ci", fmt.Sprintf("t%d", number), "cluster")
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{
		GitHub: &v1alpha1.GitHubBootstrap{Organization: "acme", Credentials: newSecretSource("token")},
	}
	before := s.platform.opened

	if _, err := s.ProviderFor(t.Context(), template, v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions}); err != nil {
		t.Fatal(err)
	}

	return s.platform.opened - before
}

// Ten thousand templates that were created and deleted leave no memory allocated.
func TestProvidersOfDeletedTemplatesAreFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	s := newProviderFixture()

	heap.CheckNoLeak(t, "providers", func(number int) {
		s.getProvider(t, number)
		s.Forget(client.ObjectKey{Namespace: "ci", Name: fmt.Sprintf("t%d", number)})
	})

	if s.getProvider(t, 1) != 1 {
		t.Error("the provider still exists after its template was deleted")
	}
}

// A provider is dropped after a while if no pool and no claim of its template uses the scope.
func TestUnusedProvidersAreDropped(t *testing.T) {
	t.Parallel()

	s := newProviderFixture()
	s.getProvider(t, 1)
	s.getProvider(t, 2)
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
	s.getProvider(t, 2)
	s.clock.SetTime(s.clock.Now().Add(time.Second))
	s.getProvider(t, 3)

	if first, second := s.getProvider(t, 1), s.getProvider(t, 2); first != 1 || second != 0 {
		t.Errorf("recreated: %d of template 1, which was not used, and %d of template 2", first, second)
	}
}

func TestOutcomeOfErrors(t *testing.T) {
	t.Parallel()

	const after = 7 * time.Second

	cases := map[string]struct {
		err  error
		want string
	}{
		"hypervisor is busy":           {&hypervisor.Error{Kind: hypervisor.Busy, Reason: "Locked", Message: "VM is locked"}, "waiting Locked: VM is locked"},
		"hypervisor has no room":       {&hypervisor.Error{Kind: hypervisor.NoCapacity, Message: "no room"}, "waiting Fallback: no room"},
		"hypervisor rejects":           {&hypervisor.Error{Kind: hypervisor.Rejected, Reason: "NoPrivilege", Message: "give it"}, "stalled NoPrivilege: give it"},
		"hypervisor's outcome unknown": {&hypervisor.Error{Kind: hypervisor.UnknownOutcome, Message: "cut off"}, "failed Fallback: cut off"},
		"forge limits the rate":        {&workload.Error{Kind: workload.RateLimited, Reason: "RateLimited", Message: "later"}, "waiting RateLimited: later"},
		"forge rejects":                {&workload.Error{Kind: workload.Rejected, Reason: "Forbidden", Message: "permit it"}, "stalled Forbidden: permit it"},
		"configuration":                {errclass.New(errclass.Configuration, "SecretNotFound", "no secret"), "stalled SecretNotFound: no secret"},
		"permanent":                    {errclass.New(errclass.Permanent, "Gone", "it is gone"), "stalled Gone: it is gone"},
		"resource":                     {errclass.New(errclass.Resource, "StorageFull", "no room"), "waiting StorageFull: no room"},
		"any other error is retried":   {errors.New("connection refused"), "failed Fallback: connection refused"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := connect.NewErrorResult(tc.err, after, "Fallback").String(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
