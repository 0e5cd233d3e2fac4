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
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

const (
	dpuPhaseConfig = "DPU Cluster Config"
	// approved is the expected reason of a request that is approved.
	approved = ""
)

// csrCase is a request, and the state of its node.
type csrCase struct {
	serving  bool
	template x509.CertificateRequest
	usages   []certificatesv1.KeyUsage
	signer   string
	// groups are the groups of a node that requests a serving certificate, or that renews its client
	// certificate.
	groups []string
	// phase is the phase of the DPU. If it is empty, there is no DPU. cluster is the DPUCluster that the
	// DPU joins.
	phase, cluster string
	// node is true if the node exists in the hosted cluster, with its addresses, and ready is true if it
	// is ready.
	node, ready bool
	addresses   []string
	// other are the addresses of another node.
	other []string
}

// newClientCase returns the request with which a worker's kubelet joins.
func newClientCase(node string) csrCase {
	return csrCase{
		template: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node}},
		usages:   []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		signer:   certificatesv1.KubeAPIServerClientKubeletSignerName, phase: dpuPhaseConfig, cluster: "dpus",
	}
}

// newServingCase returns the request for the serving certificate.
func newServingCase(node string) csrCase {
	a := newClientCase(node)
	a.serving, a.node, a.signer = true, true, certificatesv1.KubeletServingSignerName
	a.usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	a.template.DNSNames, a.template.IPAddresses = []string{node}, []net.IP{net.IPv4(10, 9, 8, 7)}
	a.addresses, a.groups = []string{"10.9.8.7", node}, []string{"system:nodes"}

	return a
}

// TestRequests checks that requests are checked against the state of both clusters, and that Kubernetes
// signs approved requests. TestEachCheckRejectsRequest covers all reasons.
func TestRequests(t *testing.T) {
	tests := map[string]struct {
		serving bool
		change  func(a *csrCase, node string)
		want    string
	}{
		"client":  {want: approved},
		"serving": {serving: true, want: approved},
		"serving with more groups": {serving: true, want: csr.ReasonRequester, change: func(a *csrCase, _ string) {
			a.groups = append(a.groups, "system:masters")
		}},
		"no DPU":                 {want: csr.ReasonDPUNotFound, change: func(a *csrCase, _ string) { a.phase = "" }},
		"DPU of another cluster": {want: csr.ReasonDPUOfAnotherCluster, change: func(a *csrCase, _ string) { a.cluster = "others" }},
		"DPU not there yet":      {want: csr.ReasonDPUPhase, change: func(a *csrCase, _ string) { a.phase = "OS Installing" }},
		"node ready already":     {want: csr.ReasonNodeAlreadyReady, change: func(a *csrCase, _ string) { a.node, a.ready = true, true }},
		"serving, no node":       {serving: true, want: csr.ReasonNodeNotFound, change: func(a *csrCase, _ string) { a.node = false }},
		"serving, unknown name": {serving: true, want: csr.ReasonAddressNotOfNode, change: func(a *csrCase, _ string) {
			a.template.DNSNames = append(a.template.DNSNames, "api.example.com")
		}},
		"serving, address of another": {serving: true, want: csr.ReasonAddressOfAnotherNode, change: func(a *csrCase, _ string) {
			a.template.IPAddresses, a.addresses = []net.IP{net.ParseIP("2001:db8::7")}, []string{"2001:db8::7"}
			a.other = []string{"2001:0db8:0::0007"}
		}},
	}

	w := newWorkers(t, runApprover(t))

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := "dpu-" + strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(strings.ToLower(name))
			a := newClientCase(node)

			if test.serving {
				a = newServingCase(node)
			}

			if test.change != nil {
				test.change(&a, node)
			}

			w.prepareCase(t, node, a)
			w.waitForDecision(t, w.createRequest(t, node, a), test.want)
		})
	}
}

// prepareCase creates the DPU and the nodes of a case. An address that several cases use belongs to one node
// at a time.
func (w *workers) prepareCase(t *testing.T, node string, a csrCase) {
	t.Helper()

	if a.phase != "" {
		at := types.NamespacedName{Namespace: w.dpus.Namespace, Name: a.cluster}
		must.Do(t, w.sim.SetDPU(t.Context(), at, node, a.phase))
	}

	if a.node {
		createNode(t, node, a.addresses, a.ready)
	}

	if a.other != nil {
		createNode(t, node+"-other", a.other, true)
	}
}

func createNode(t *testing.T, name string, addresses []string, ready bool) *corev1.Node {
	t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must.Do(t, env.Client.Create(t.Context(), node))

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

	must.Do(t, env.Client.Status().Update(t.Context(), node))

	return node
}

// createRequest creates the request of a case as the case's requester.
func (w *workers) createRequest(t *testing.T, node string, a csrCase) *certificatesv1.CertificateSigningRequest {
	t.Helper()

	requesterConfig := env.ServiceAccount(t, workersNamespace, workersAccount)
	if a.groups != nil {
		requesterConfig = env.User(t, "system:node:"+node, a.groups...)
	}

	requester, err := client.New(requesterConfig, client.Options{Scheme: env.Scheme})
	must.Do(t, err)

	object := newRequest(t, a)
	must.Do(t, requester.Create(t.Context(), object))

	return object
}

func encode(t *testing.T, template *x509.CertificateRequest) []byte {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Do(t, err)

	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	must.Do(t, err)

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// waitForDecision waits for the decision about a request.
func (w *workers) waitForDecision(t *testing.T, object *certificatesv1.CertificateSigningRequest, reason string) {
	t.Helper()

	if reason == approved {
		w.eventually(t, "the certificate is signed", func() bool {
			w.refresh(t, object)

			return len(object.Status.Certificate) > 0
		})

		return
	}

	w.eventually(t, object.Name+" gets an event that it is refused for "+reason, func() bool {
		return strings.Contains(w.eventNotes(t, object.Name), object.Name+" of the hosted cluster: "+reason+": ")
	})

	if scrape.SumOf(t, w.beside.registry, "hyperfleet_bridge_csr_decisions_total", `reason="`+reason+`"`) == 0 {
		t.Errorf("no metric counts the refusal for %s", reason)
	}

	w.refresh(t, object)

	if !csr.IsPending(object) {
		t.Errorf("it does not stay pending: %+v", object.Status.Conditions)
	}
}

func (w *workers) refresh(t *testing.T, object client.Object) {
	t.Helper()

	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// eventNotes returns the notes of the bridge's events about a request.
func (w *workers) eventNotes(t *testing.T, name string) string {
	t.Helper()

	var (
		all eventsv1.EventList
		out []string
	)

	must.Do(t, env.Client.List(t.Context(), &all, client.InNamespace(w.bridge.Namespace)))

	for _, e := range all.Items {
		if strings.Contains(e.Note, name) {
			out = append(out, e.Note)
		}
	}

	return strings.Join(out, "\n")
}

// TestRequestsThatWait checks that a request that waits for its DPU or node is approved when they exist,
// unless it was denied. Requests for other signers are not touched.
func TestRequestsThatWait(t *testing.T) {
	w := newWorkers(t, runApprover(t))

	foreign := newClientCase("dpu-foreign")
	foreign.signer = certificatesv1.KubeAPIServerClientSignerName
	w.prepareCase(t, "dpu-foreign", foreign)
	untouched := w.createRequest(t, "dpu-foreign", foreign)

	early := newClientCase("dpu-early")
	early.phase = "Rebooting"
	w.prepareCase(t, "dpu-early", early)
	first := w.createRequest(t, "dpu-early", early)
	w.waitForDecision(t, first, csr.ReasonDPUPhase)

	denied := w.createRequest(t, "dpu-early", early)
	w.waitForDecision(t, denied, csr.ReasonDPUPhase)

	denied.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "ByHand", LastUpdateTime: metav1.Now(),
	}}
	must.Do(t, env.Client.SubResource("approval").Update(t.Context(), denied))

	must.Do(t, w.sim.SetDPU(t.Context(), w.dpus, "dpu-early", dpuPhaseConfig))

	w.waitForDecision(t, first, approved)

	serving := newServingCase("dpu-early")
	second := w.createRequest(t, "dpu-early", serving)
	w.waitForDecision(t, second, csr.ReasonNodeNotFound)
	createNode(t, "dpu-early", serving.addresses, false)
	w.waitForDecision(t, second, approved)

	w.refresh(t, untouched)

	if errorLog.hasLine(denied.Name) {
		t.Error("the operator tried to approve a denied request")
	}

	if !csr.IsPending(untouched) || w.eventNotes(t, untouched.Name) != "" {
		t.Errorf("a request of another signer was touched: %+v %s", untouched.Status.Conditions, w.eventNotes(t, untouched.Name))
	}
}

// TestRenewalsAreLeftToKubernetes checks that the request with which a node renews its client certificate is not
// reported as refused, because Kubernetes approves it.
func TestRenewalsAreLeftToKubernetes(t *testing.T) {
	const node = "dpu-renews"

	w := newWorkers(t, runApprover(t))
	renewal := newClientCase(node)
	renewal.phase, renewal.node, renewal.ready, renewal.groups = "Ready", true, true, []string{"system:nodes"}
	w.prepareCase(t, node, renewal)
	renewed := w.createRequest(t, node, renewal)

	// When the second of these requests is decided, the reconcile that decided the first one has ended, and it knew
	// the renewal.
	for _, name := range []string{"dpu-unknown-1", "dpu-unknown-2"} {
		unknown := newClientCase(name)
		unknown.phase = ""
		w.waitForDecision(t, w.createRequest(t, name, unknown), csr.ReasonDPUNotFound)
	}

	w.refresh(t, renewed)

	if notes := w.eventNotes(t, renewed.Name); notes != "" || !csr.IsPending(renewed) {
		t.Errorf("the bridge has the event %q, and the request the conditions %+v", notes, renewed.Status.Conditions)
	}
}

// TestWatchesOfAHostedCluster checks that heartbeats of nodes trigger no reconciles. A new kubeconfig
// stops the watches with the old one, and the deletion of the bridge stops all watches.
func TestWatchesOfAHostedCluster(t *testing.T) {
	approver := runApprover(t)
	w := newWorkers(t, approver)
	node := createNode(t, "dpu-beats", []string{"10.7.7.7"}, false)

	w.eventually(t, "its requests and nodes are watched", func() bool { return approver.openWatches.Load() == 2 })

	const beats = 20

	before := approver.reconciles.Load()

	for beat := range beats {
		node.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(time.Now().Add(time.Duration(beat) * time.Second))
		must.Do(t, env.Client.Status().Update(t.Context(), node))

		time.Sleep(checkInterval)
	}

	// Some reconciles were triggered by earlier events.
	if passes := approver.reconciles.Load() - before; passes > beats/2 {
		t.Errorf("%d reconciles for %d heartbeats", passes, beats)
	}

	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = w.bridge.Namespace, "c1-admin-kubeconfig"
	w.refresh(t, secret)
	secret.Data["kubeconfig"] = append(secret.Data["kubeconfig"], "\n# rotated\n"...)

	must.Do(t, env.Client.Update(t.Context(), secret))

	w.eventually(t, "it is watched by the other kubeconfig", func() bool { return approver.startedWatches.Load() == 4 })

	must.Do(t, env.Client.Delete(t.Context(), w.bridge))

	w.eventually(t, "nothing is watched", func() bool { return approver.openWatches.Load() == 0 })
}

// TestKubeconfigOfOthers checks that a user who can write Secrets cannot make the operator run
// programs, read files or connect to another server. When the kubeconfig is HyperShift's again, the
// waiting request is approved.
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
		"names a file": {want: "refers to files", spoil: func(s *corev1.Secret) {
			s.Data["kubeconfig"] = kubeconfig(`{"tokenFile":"/var/run/secrets/kubernetes.io/serviceaccount/token"}`)
		}},
		"is none":                 {want: "it is not a kubeconfig", spoil: func(s *corev1.Secret) { s.Data["kubeconfig"] = []byte("nonsense") }},
		"owned by another object": {want: "it is not owned by the HostedCluster of the bridge", spoil: func(s *corev1.Secret) { s.OwnerReferences = nil }},
	}

	approver := runApprover(t)

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorkers(t, approver)
			node := "dpu-" + strings.NewReplacer(" ", "-", "'", "").Replace(name)

			secret := &corev1.Secret{}
			secret.Namespace, secret.Name = w.bridge.Namespace, "c1-admin-kubeconfig"
			w.refresh(t, secret)

			good := secret.DeepCopy()
			test.spoil(secret)

			must.Do(t, env.Client.Update(t.Context(), secret))

			a := newClientCase(node)
			w.prepareCase(t, node, a)
			object := w.createRequest(t, node, a)

			w.eventually(t, "the log has the reason", func() bool { return errorLog.hasLine(w.bridge.Namespace, test.want) })
			w.refresh(t, object)

			if _, err := os.Stat(marker); err == nil || !csr.IsPending(object) {
				t.Errorf("the kubeconfig was used: %+v", object.Status.Conditions)
			}

			good.ResourceVersion = secret.ResourceVersion
			must.Do(t, env.Client.Update(t.Context(), good))

			w.waitForDecision(t, object, approved)
		})
	}
}
