// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	worker   = "dpu-0001"
	workerIP = "10.7.7.7"
)

// A DPU's worker joins a hosted cluster that is a control plane of its own: with the
// certificate that is approved for it, it makes its node, and then has the one that it serves
// with. A worker that is no DPU waits for a person.
func TestWorkersJoin(t *testing.T) {
	hosted := kube.Start(t, kube.WithControllerManager())
	letAsk(t, hosted)

	w := newWorld(t, hosted.Config)
	w.start(env.ServiceAccount(t, system, account))

	bridge := w.sample("dpfhcpbridge-development.yaml")
	w.becomes(bridge, v1alpha1.PhaseReady)

	dpus := types.NamespacedName{Namespace: w.dpf, Name: bridge.Spec.DPUClusterRef.Name}
	if err := w.sim.SetDPU(t.Context(), dpus, worker, "DPU Cluster Config"); err != nil {
		t.Fatal(err)
	}

	bootstrap := hosted.ServiceAccount(t, "openshift-machine-config-operator", "node-bootstrapper")

	stranger, _ := ask(t, hosted, bootstrap, "dpu-stranger", false)
	first, key := ask(t, hosted, bootstrap, worker, false)
	w.signed(hosted, first)
	w.sayf("worker %s: its certificate is approved and signed", worker)

	kubelet := rest.AnonymousClientConfig(hosted.Config)
	kubelet.CertData, kubelet.KeyData = first.Status.Certificate, key
	register(t, hosted, kubelet)

	second, _ := ask(t, hosted, kubelet, worker, true)
	w.signed(hosted, second)
	w.sayf("worker %s: joined, and has the certificate that it serves with", worker)

	w.eventually("the stranger is told of", func() bool { return w.told("dpu-stranger") })

	if err := hosted.Client.Get(t.Context(), client.ObjectKeyFromObject(stranger), stranger); err != nil {
		t.Fatal(err)
	}

	if len(stranger.Status.Conditions)+len(stranger.Status.Certificate) > 0 {
		t.Errorf("a worker that is no DPU was decided about: %+v", stranger.Status.Conditions)
	}

	w.sayf("worker dpu-stranger: no DPU, waits for a person")
	w.remove(bridge)
}

// letAsk gives workers and nodes the rights that they have in OpenShift.
func letAsk(t *testing.T, hosted *kube.Env) {
	t.Helper()

	for name, role := range map[string]string{"bootstrap": "system:node-bootstrapper", "nodes": "system:node"} {
		subject := rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}
		if name == "bootstrap" {
			subject = rbacv1.Subject{
				Kind: rbacv1.ServiceAccountKind, Namespace: "openshift-machine-config-operator", Name: "node-bootstrapper",
			}
		}

		err := hosted.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "workers-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{subject},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// ask sends a kubelet's request, and gives its key.
func ask(
	t *testing.T, hosted *kube.Env, who *rest.Config, node string, serving bool,
) (*certificatesv1.CertificateSigningRequest, []byte) {
	t.Helper()

	template := &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node},
	}
	object := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}

	if serving {
		template.DNSNames, template.IPAddresses = []string{node}, []net.IP{net.ParseIP(workerIP)}
		object.Spec.SignerName = certificatesv1.KubeletServingSignerName
		object.Spec.Usages[1] = certificatesv1.UsageServerAuth
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}

	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	object.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})

	if err := clientOf(t, hosted, who).Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	return object, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func clientOf(t *testing.T, hosted *kube.Env, who *rest.Config) client.Client {
	t.Helper()

	c, err := client.New(who, client.Options{Scheme: hosted.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	return c
}

func (w *world) signed(hosted *kube.Env, object *certificatesv1.CertificateSigningRequest) {
	w.t.Helper()
	w.eventually("a certificate is signed for "+object.Name, func() bool {
		if err := hosted.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			w.t.Fatal(err)
		}

		return len(object.Status.Certificate) > 0
	})
}

// register makes the worker's node as its kubelet does.
func register(t *testing.T, hosted *kube.Env, kubelet *rest.Config) {
	t.Helper()

	c := clientOf(t, hosted, kubelet)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: worker}}
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}

	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: workerIP}, {Type: corev1.NodeHostName, Address: worker},
	}
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}
