// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// groups of a node that asks to serve.
	groups []string
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
	a.addresses, a.groups = []string{"10.9.8.7", node}, []string{"system:nodes"}

	return a
}

// What a request is held against is what there is in both clusters; what is approved,
// Kubernetes signs. TestOneThingIsEnoughToRefuse has all reasons.
func TestRequests(t *testing.T) {
	tests := map[string]struct {
		serving bool
		change  func(a *asked, node string)
		want    string
	}{
		"client":  {want: approved},
		"serving": {serving: true, want: approved},
		"serving with more groups": {serving: true, want: csr.ReasonRequester, change: func(a *asked, _ string) {
			a.groups = append(a.groups, "system:masters")
		}},
		"no DPU":                 {want: csr.ReasonDPUNotFound, change: func(a *asked, _ string) { a.phase = "" }},
		"DPU of another cluster": {want: csr.ReasonDPUElsewhere, change: func(a *asked, _ string) { a.cluster = "others" }},
		"DPU not there yet":      {want: csr.ReasonDPUPhase, change: func(a *asked, _ string) { a.phase = "OS Installing" }},
		"node ready already":     {want: csr.ReasonNodeReady, change: func(a *asked, _ string) { a.node, a.ready = true, true }},
		"serving, no node":       {serving: true, want: csr.ReasonNodeNotFound, change: func(a *asked, _ string) { a.node = false }},
		"serving, name of nobody": {serving: true, want: csr.ReasonAddressUnknown, change: func(a *asked, _ string) {
			a.template.DNSNames = append(a.template.DNSNames, "api.example.com")
		}},
		"serving, address of another": {serving: true, want: csr.ReasonAddressTaken, change: func(a *asked, _ string) {
			a.template.IPAddresses, a.addresses = []net.IP{net.ParseIP("2001:db8::7")}, []string{"2001:db8::7"}
			a.other = []string{"2001:0db8:0::0007"}
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
		must(t, w.sim.SetDPU(t.Context(), at, node, a.phase))
	}

	if a.node {
		makeWorker(t, node, a.addresses, a.ready)
	}

	if a.other != nil {
		makeWorker(t, node+"-other", a.other, true)
	}
}

func makeWorker(t *testing.T, name string, addresses []string, ready bool) *corev1.Node {
	t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(t, env.Client.Create(t.Context(), node))

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

	must(t, env.Client.Status().Update(t.Context(), node))

	return node
}

// ask sends a row's request, by who asks.
func (w *workers) ask(t *testing.T, node string, a asked) *certificatesv1.CertificateSigningRequest {
	t.Helper()

	who := env.ServiceAccount(t, workersNamespace, workersAccount)
	if a.serving {
		who = env.User(t, "system:node:"+node, a.groups...)
	}

	requester, err := client.New(who, client.Options{Scheme: env.Scheme})
	must(t, err)

	object := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: encode(t, &a.template), SignerName: a.signer, Usages: a.usages,
		},
	}
	must(t, requester.Create(t.Context(), object))

	return object
}

func encode(t *testing.T, template *x509.CertificateRequest) []byte {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)

	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	must(t, err)

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

	must(t, env.Client.List(t.Context(), &all, client.InNamespace(w.bridge.Namespace)))

	for _, e := range all.Items {
		if strings.Contains(e.Note, name) {
			out = append(out, e.Note)
		}
	}

	return strings.Join(out, "\n")
}

// A request that waits for its DPU or node is approved when they are there, if nobody has denied
// it; those of other signers are nobody's here.
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

	denied := w.ask(t, "dpu-early", early)
	w.want(t, denied, csr.ReasonDPUPhase)

	denied.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "ByHand", LastUpdateTime: metav1.Now(),
	}}
	must(t, env.Client.SubResource("approval").Update(t.Context(), denied))

	must(t, w.sim.SetDPU(t.Context(), w.dpus, "dpu-early", joins))

	w.want(t, first, approved)

	serving := servingOf("dpu-early")
	second := w.ask(t, "dpu-early", serving)
	w.want(t, second, csr.ReasonNodeNotFound)
	makeWorker(t, "dpu-early", serving.addresses, false)
	w.want(t, second, approved)

	w.look(t, untouched)

	if logged.has(denied.Name) {
		t.Error("a request that somebody has denied was tried to be approved")
	}

	if !csr.Pending(untouched) || w.toldOf(t, untouched.Name) != "" {
		t.Errorf("a request of another signer was touched: %+v %s", untouched.Status.Conditions, w.toldOf(t, untouched.Name))
	}
}

// Heartbeats of nodes have no bridge looked at. Another kubeconfig ends the watches by the old one,
// and so does the bridge's end.
func TestWatchesOfAHostedCluster(t *testing.T) {
	beside := approve(t)
	w := newWorkers(t, beside)
	node := makeWorker(t, "dpu-beats", []string{"10.7.7.7"}, false)

	w.eventually(t, "its requests and nodes are watched", func() bool { return beside.watches.Load() == 2 })

	const beats = 20

	before := beside.passes.Load()

	for beat := range beats {
		node.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(time.Now().Add(time.Duration(beat) * time.Second))
		must(t, env.Client.Status().Update(t.Context(), node))

		time.Sleep(lookAt)
	}

	// Some passes are of what came before.
	if passes := beside.passes.Load() - before; passes > beats/2 {
		t.Errorf("%d passes for %d heartbeats", passes, beats)
	}

	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = w.bridge.Namespace, "c1-admin-kubeconfig"
	w.look(t, secret)
	secret.Data["kubeconfig"] = append(secret.Data["kubeconfig"], "\n# rotated\n"...)

	must(t, env.Client.Update(t.Context(), secret))

	w.eventually(t, "it is watched by the other kubeconfig", func() bool { return beside.begun.Load() == 4 })

	must(t, env.Client.Delete(t.Context(), w.bridge))

	w.eventually(t, "nothing is watched", func() bool { return beside.watches.Load() == 0 })
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

	beside := approve(t)

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorkers(t, beside)
			node := "dpu-" + strings.NewReplacer(" ", "-", "'", "").Replace(name)

			secret := &corev1.Secret{}
			secret.Namespace, secret.Name = w.bridge.Namespace, "c1-admin-kubeconfig"
			w.look(t, secret)

			good := secret.DeepCopy()
			test.spoil(secret)

			must(t, env.Client.Update(t.Context(), secret))

			a := clientOf(node)
			w.prepare(t, node, a)
			object := w.ask(t, node, a)

			w.eventually(t, "the log says why", func() bool { return logged.has(w.bridge.Namespace, test.want) })
			w.look(t, object)

			if _, err := os.Stat(marker); err == nil || !csr.Pending(object) {
				t.Errorf("the kubeconfig was used: %+v", object.Status.Conditions)
			}

			good.ResourceVersion = secret.ResourceVersion
			must(t, env.Client.Update(t.Context(), good))

			w.want(t, object, approved)
		})
	}
}
