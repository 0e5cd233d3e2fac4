// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/bridge/csr"
)

const (
	joins = "DPU Cluster Config"
	// approved is what a row wants that is not refused.
	approved = ""
)

// asked is a request, and what there is of its node.
type asked struct {
	serving  bool
	template x509.CertificateRequest
	usages   []certificatesv1.KeyUsage
	signer   string
	rsa      bool
	// trailer is added to the request in PEM.
	trailer string
	// by makes the requester; nil: who ought to ask.
	by func(t *testing.T, node string) *rest.Config
	// phase of the DPU; empty: there is none. cluster is the DPUCluster it joins.
	phase, cluster string
	// node is in the hosted cluster, with its addresses, and perhaps ready.
	node, ready bool
	addresses   []string
	// other node has addresses, too.
	other []string
}

// client is what a worker's kubelet asks for to join.
func clientOf(node string) asked {
	return asked{
		template: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node}},
		usages:   []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		signer:   certificatesv1.KubeAPIServerClientKubeletSignerName, phase: joins, cluster: "dpus",
	}
}

// servingOf is what it asks for to serve.
func servingOf(node string) asked {
	a := clientOf(node)
	a.serving, a.node, a.signer = true, true, certificatesv1.KubeletServingSignerName
	a.usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	a.template.DNSNames, a.template.IPAddresses = []string{node}, []net.IP{net.IPv4(10, 9, 8, 7)}
	a.addresses = []string{"10.9.8.7", node}

	return a
}

// TestRequests has a row for each reason to approve a request or not, through the API server
// and the controller; what is approved, Kubernetes signs.
func TestRequests(t *testing.T) {
	stranger := func(t *testing.T, _ string) *rest.Config { t.Helper(); return env.User(t, "stranger") }
	another := func(t *testing.T, _ string) *rest.Config {
		t.Helper()
		return env.User(t, "node-of-another-kind", "system:nodes") // the API server itself lets no other Node ask
	}
	mighty := func(t *testing.T, node string) *rest.Config {
		t.Helper()

		return env.User(t, "system:node:"+node, "system:nodes", "system:masters")
	}

	tests := map[string]struct {
		serving bool
		change  func(a *asked, node string)
		want    string
	}{
		"client": {want: approved},
		"client with an RSA key": {want: approved, change: func(a *asked, _ string) {
			a.rsa, a.usages = true, append(a.usages, certificatesv1.UsageKeyEncipherment)
		}},
		"client of a node not ready": {want: approved, change: func(a *asked, _ string) { a.node = true }},
		"serving":                    {serving: true, want: approved},
		"serving when ready":         {serving: true, want: approved, change: func(a *asked, _ string) { a.phase, a.ready = "Ready", true }},
		"serving when released":      {serving: true, want: approved, change: func(a *asked, _ string) { a.phase = "Node Effect Removal" }},

		"more than one block": {want: csr.ReasonRequest, change: func(a *asked, _ string) { a.trailer = "and more" }},
		"asked by a stranger": {want: csr.ReasonRequester, change: func(a *asked, _ string) { a.by = stranger }},
		"asked by the node itself": {want: csr.ReasonRequester, change: func(a *asked, _ string) {
			a.by = func(t *testing.T, node string) *rest.Config {
				t.Helper()
				return env.User(t, "system:node:"+node, "system:nodes")
			}
		}},
		"serving of another node":  {serving: true, want: csr.ReasonRequester, change: func(a *asked, _ string) { a.by = another }},
		"serving with more groups": {serving: true, want: csr.ReasonRequester, change: func(a *asked, _ string) { a.by = mighty }},
		"usage too many": {want: csr.ReasonUsages, change: func(a *asked, _ string) {
			a.usages = append(a.usages, certificatesv1.UsageServerAuth)
		}},
		"usage of RSA without it": {want: csr.ReasonUsages, change: func(a *asked, _ string) {
			a.usages = append(a.usages, certificatesv1.UsageKeyEncipherment)
		}},
		"serving as a client": {serving: true, want: csr.ReasonUsages, change: func(a *asked, _ string) {
			a.usages = append(a.usages, certificatesv1.UsageClientAuth)
		}},
		"other organisation": {want: csr.ReasonOrganization, change: func(a *asked, _ string) {
			a.template.Subject.Organization = []string{"system:masters"}
		}},
		"two organisations": {want: csr.ReasonOrganization, change: func(a *asked, _ string) {
			a.template.Subject.Organization = []string{"system:nodes", "system:masters"}
		}},
		"no node's name": {want: csr.ReasonCommonName, change: func(a *asked, node string) { a.template.Subject.CommonName = node }},
		"empty name":     {want: csr.ReasonCommonName, change: func(a *asked, _ string) { a.template.Subject.CommonName = "system:node:" }},
		"more in the subject": {want: csr.ReasonSubject, change: func(a *asked, _ string) {
			a.template.Subject.OrganizationalUnit = []string{"more"}
		}},
		"extension": {want: csr.ReasonExtension, change: func(a *asked, _ string) {
			a.template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}},
		"client with alternative names": {want: csr.ReasonAlternatives, change: func(a *asked, node string) {
			a.template.DNSNames = []string{node}
		}},
		"serving with an e-mail address": {serving: true, want: csr.ReasonAlternatives, change: func(a *asked, _ string) {
			a.template.EmailAddresses = []string{"a@example.com"}
		}},
		"serving without its name": {serving: true, want: csr.ReasonAlternatives, change: func(a *asked, _ string) {
			a.template.DNSNames = nil
		}},
		"serving at loopback": {serving: true, want: csr.ReasonAlternatives, change: func(a *asked, _ string) {
			a.template.IPAddresses, a.addresses = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"127.0.0.1"}
		}},
		"no DPU":                 {want: csr.ReasonDPUNotFound, change: func(a *asked, _ string) { a.phase = "" }},
		"DPU of another cluster": {want: csr.ReasonDPUElsewhere, change: func(a *asked, _ string) { a.cluster = "others" }},
		"DPU not there yet":      {want: csr.ReasonDPUPhase, change: func(a *asked, _ string) { a.phase = "OS Installing" }},
		"DPU ready, joining":     {want: csr.ReasonDPUPhase, change: func(a *asked, _ string) { a.phase = "Ready" }},
		"serving, DPU in error":  {serving: true, want: csr.ReasonDPUPhase, change: func(a *asked, _ string) { a.phase = "Error" }},
		"node ready already":     {want: csr.ReasonNodeReady, change: func(a *asked, _ string) { a.node, a.ready = true, true }},
		"serving, no node":       {serving: true, want: csr.ReasonNodeNotFound, change: func(a *asked, _ string) { a.node = false }},
		"serving, address of nobody": {serving: true, want: csr.ReasonAddressUnknown, change: func(a *asked, _ string) {
			a.template.IPAddresses = append(a.template.IPAddresses, net.IPv4(10, 9, 9, 9))
		}},
		"serving, name of nobody": {serving: true, want: csr.ReasonAddressUnknown, change: func(a *asked, _ string) {
			a.template.DNSNames = append(a.template.DNSNames, "api.example.com")
		}},
		"serving, address of another": {serving: true, want: csr.ReasonAddressTaken, change: func(a *asked, _ string) {
			a.template.IPAddresses, a.addresses, a.other = []net.IP{net.IPv4(10, 1, 1, 1)}, []string{"10.1.1.1"}, []string{"10.1.1.1"}
		}},
	}

	w := newWorkers(t, approve(t))

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := "dpu-" + strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(strings.ToLower(name))
			a := clientOf(node)

			if test.serving {
				a = servingOf(node)
			}

			if test.change != nil {
				test.change(&a, node)
			}

			w.prepare(t, node, a)
			w.want(t, w.ask(t, node, a), test.want)
		})
	}
}

// prepare makes a row's DPU and nodes. Addresses that rows share are of one node at a time.
func (w *workers) prepare(t *testing.T, node string, a asked) {
	t.Helper()

	if a.phase != "" {
		at := types.NamespacedName{Namespace: w.dpus.Namespace, Name: a.cluster}
		if err := w.sim.SetDPU(t.Context(), at, node, a.phase); err != nil {
			t.Fatal(err)
		}
	}

	if a.node {
		makeWorker(t, node, a.addresses, a.ready)
	}

	if a.other != nil {
		makeWorker(t, node+"-other", a.other, true)
	}
}

func makeWorker(t *testing.T, name string, addresses []string, ready bool) {
	t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := env.Client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := env.Client.Delete(context.Background(), node); err != nil {
			t.Error(err)
		}
	})

	for _, a := range addresses {
		kind := corev1.NodeInternalIP
		if net.ParseIP(a) == nil {
			kind = corev1.NodeHostName
		}

		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: a})
	}

	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}

	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}

	if err := env.Client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// ask sends a row's request, by who asks.
func (w *workers) ask(t *testing.T, node string, a asked) *certificatesv1.CertificateSigningRequest {
	t.Helper()

	var who *rest.Config

	switch {
	case a.by != nil:
		who = a.by(t, node)
	case a.serving:
		who = env.User(t, "system:node:"+node, "system:nodes")
	default:
		who = env.ServiceAccount(t, workersNamespace, workersAccount)
	}

	requester, err := client.New(who, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	object := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: append(encode(t, a), a.trailer...), SignerName: a.signer, Usages: a.usages,
		},
	}
	if err := requester.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	return object
}

func encode(t *testing.T, a asked) []byte {
	t.Helper()

	var (
		key crypto.Signer
		err error
	)

	if a.rsa {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}

	if err != nil {
		t.Fatal(err)
	}

	der, err := x509.CreateCertificateRequest(rand.Reader, &a.template, key)
	if err != nil {
		t.Fatal(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// want waits for what becomes of a request.
func (w *workers) want(t *testing.T, object *certificatesv1.CertificateSigningRequest, reason string) {
	t.Helper()

	if reason == approved {
		w.eventually(t, "the certificate is signed", func() bool {
			w.look(t, object)

			return len(object.Status.Certificate) > 0
		})

		return
	}

	w.eventually(t, object.Name+" is told to be refused for "+reason, func() bool {
		return strings.Contains(w.toldOf(t, object.Name), object.Name+" of the hosted cluster: "+reason+": ")
	})
	w.look(t, object)

	if !csr.Pending(object) {
		t.Errorf("it does not stay pending: %+v", object.Status.Conditions)
	}
}

func (w *workers) look(t *testing.T, object client.Object) {
	t.Helper()

	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// toldOf is what the bridge's events say of a request.
func (w *workers) toldOf(t *testing.T, name string) string {
	t.Helper()

	var (
		all eventsv1.EventList
		out []string
	)

	if err := env.Client.List(t.Context(), &all, client.InNamespace(w.bridge.Namespace)); err != nil {
		t.Fatal(err)
	}

	for _, e := range all.Items {
		if strings.Contains(e.Note, name) {
			out = append(out, e.Note)
		}
	}

	return strings.Join(out, "\n")
}

// A request that waits for its DPU or node is approved when they are there; those of other
// signers are nobody's here.
func TestRequestsThatWait(t *testing.T) {
	w := newWorkers(t, approve(t))

	foreign := clientOf("dpu-foreign")
	foreign.signer = certificatesv1.KubeAPIServerClientSignerName
	w.prepare(t, "dpu-foreign", foreign)
	untouched := w.ask(t, "dpu-foreign", foreign)

	early := clientOf("dpu-early")
	early.phase = "Rebooting"
	w.prepare(t, "dpu-early", early)
	first := w.ask(t, "dpu-early", early)
	w.want(t, first, csr.ReasonDPUPhase)

	if err := w.sim.SetDPU(t.Context(), w.dpus, "dpu-early", joins); err != nil {
		t.Fatal(err)
	}

	w.want(t, first, approved)

	serving := servingOf("dpu-early")
	second := w.ask(t, "dpu-early", serving)
	w.want(t, second, csr.ReasonNodeNotFound)
	makeWorker(t, "dpu-early", serving.addresses, false)
	w.want(t, second, approved)

	w.look(t, untouched)

	if !csr.Pending(untouched) || w.toldOf(t, untouched.Name) != "" {
		t.Errorf("a request of another signer was touched: %+v %s", untouched.Status.Conditions, w.toldOf(t, untouched.Name))
	}
}

// Whoever may write Secrets can't have the operator run programs or read files, nor lead it
// elsewhere. When the kubeconfig is HyperShift's again, what waited is approved.
func TestKubeconfigOfOthers(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "ran")
	kubeconfig := func(user string) []byte {
		return []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",` +
			`"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"` + env.Config.Host + `"}}],"users":[{"name":"u","user":` + user + `}]}`)
	}

	tests := map[string]struct {
		spoil func(*corev1.Secret)
		want  string
	}{
		"runs a program": {want: "runs a program to authenticate", spoil: func(s *corev1.Secret) {
			s.Data["kubeconfig"] = kubeconfig(`{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/touch",` +
				`"args":["` + marker + `"],"interactiveMode":"Never"}}`)
		}},
		"names a file": {want: "names files", spoil: func(s *corev1.Secret) {
			s.Data["kubeconfig"] = kubeconfig(`{"tokenFile":"/var/run/secrets/kubernetes.io/serviceaccount/token"}`)
		}},
		"is none":         {want: "it is no kubeconfig", spoil: func(s *corev1.Secret) { s.Data["kubeconfig"] = []byte("nonsense") }},
		"somebody else's": {want: "it is not HyperShift's", spoil: func(s *corev1.Secret) { s.OwnerReferences = nil }},
	}

	sim := approve(t)

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorkers(t, sim)
			node := "dpu-" + strings.NewReplacer(" ", "-", "'", "").Replace(name)

			secret := &corev1.Secret{}
			secret.Namespace, secret.Name = w.bridge.Namespace, "c1-admin-kubeconfig"
			w.look(t, secret)

			good := secret.DeepCopy()
			test.spoil(secret)

			if err := env.Client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}

			a := clientOf(node)
			w.prepare(t, node, a)
			object := w.ask(t, node, a)

			w.eventually(t, "the log says why", func() bool { return logged.has(w.bridge.Namespace, test.want) })
			w.look(t, object)

			if _, err := os.Stat(marker); err == nil || !csr.Pending(object) {
				t.Errorf("the kubeconfig was used: %+v", object.Status.Conditions)
			}

			good.ResourceVersion = secret.ResourceVersion
			if err := env.Client.Update(t.Context(), good); err != nil {
				t.Fatal(err)
			}

			w.want(t, object, approved)
		})
	}
}
