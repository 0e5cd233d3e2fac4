// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	// userPrefix and group are whom the API server takes the certificate's holder for.
	userPrefix = "system:node:"
	group      = "system:nodes"

	// maxCertificate bounds what is read of another cluster's word.
	maxCertificate = 64 << 10
	// patience is how long a cluster may take to sign.
	patience = 2 * time.Minute
)

// Reasons of Advance's errors that a person has to do something about.
const (
	ReasonForbidden = "NodeCredentialForbidden"
	ReasonRefused   = "NodeCredentialRefused"
	ReasonNotSigned = "NodeCredentialNotSigned"
)

// Issued is a credential that a host can be given.
type Issued struct {
	Kubeconfig log.Secret
	// From and Until it holds.
	From, Until time.Time
}

// Wanted is a credential that is on its way.
type Wanted struct {
	// Issued is what has come of it; nil before.
	Issued *Issued

	node, name   string
	key, request []byte
	asked        time.Time
}

// New makes the key of a Node's credential.
func New(node string, now time.Time) (*Wanted, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of node %s: %w", node, err)
	}

	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key of node %s: %w", node, err)
	}

	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: userPrefix + node, Organization: []string{group}},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("make request of node %s: %w", node, err)
	}

	const short = 5

	sum := sha256.Sum256(request)

	return &Wanted{
		node: node, name: "hyperfleet-" + node + "-" + hex.EncodeToString(sum[:short]), asked: now,
		key:     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
	}, nil
}

// Advance does what can be done now for the credential to be signed, for a lifetime, by the
// cluster that a kubeconfig leads to. Without an error, and while Issued is nil, it is to be
// called again in a second or two. What a person has to change is of class Configuration.
func (w *Wanted) Advance(ctx context.Context, data []byte, lifetime time.Duration, now time.Time) error {
	if w.Issued != nil {
		return nil
	}

	cluster, end, err := kubeconfig.Connect(data, kubeconfig.Kinds{
		Add: []func(*runtime.Scheme) error{certificatesv1.AddToScheme},
		Known: map[schema.GroupVersionKind]meta.RESTScope{
			certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"): meta.RESTScopeRoot,
		},
	})
	if err != nil {
		return fmt.Errorf("connect to the cluster of the Node: %w", err)
	}
	defer end()

	object, err := w.requested(ctx, cluster, lifetime)
	if err != nil {
		return err
	}

	if len(object.Status.Certificate) > 0 {
		return w.take(data, object.Status.Certificate)
	}

	if err := refused(object); err != nil {
		return err
	}

	if now.Sub(w.asked) > patience {
		return errclass.New(errclass.Configuration, ReasonNotSigned,
			"certificate signing request %s is not signed: the cluster has to sign for %s", w.name,
			certificatesv1.KubeAPIServerClientKubeletSignerName)
	}

	return w.approve(ctx, cluster, object)
}

// requested makes the request, or reads how it stands.
func (w *Wanted) requested(
	ctx context.Context, cluster client.Client, lifetime time.Duration,
) (*certificatesv1.CertificateSigningRequest, error) {
	object := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: w.request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			ExpirationSeconds: new(int32(lifetime / time.Second)), //nolint:gosec // G115: the schema bounds it
			Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}

	err := cluster.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		err = cluster.Get(ctx, client.ObjectKeyFromObject(object), object)
	}

	if err != nil {
		return nil, w.failed("make certificate signing request", err)
	}

	return object, nil
}

// failed is an error of a call, with what to do where the user may not make it.
func (w *Wanted) failed(what string, err error) error {
	if apierrors.IsForbidden(err) {
		return errclass.New(errclass.Configuration, ReasonForbidden, "%s %s: the kubeconfig's user may not: give it the rights "+
			"that the guide to hosts names", what, w.name)
	}

	return fmt.Errorf("%s %s: %w", what, w.name, kubeconfig.Answered(err))
}

// refused says whether somebody, or the signer, has said no.
func refused(object *certificatesv1.CertificateSigningRequest) error {
	for _, c := range object.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return errclass.New(errclass.Configuration, ReasonRefused,
				"certificate signing request %s was refused: see why with kubectl describe csr %s", object.Name, object.Name)
		}
	}

	return nil
}

// approve lets the signer sign.
func (w *Wanted) approve(ctx context.Context, cluster client.Client, object *certificatesv1.CertificateSigningRequest) error {
	for _, c := range object.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved {
			return nil
		}
	}

	object.Status.Conditions = append(object.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "HyperFleetHost", Message: "asked for by HyperFleet for its host " + w.node,
	})

	// Where somebody else was faster, the next call sees it.
	if err := cluster.SubResource("approval").Update(ctx, object); err != nil && !apierrors.IsConflict(err) {
		return w.failed("approve certificate signing request", err)
	}

	return nil
}

// take makes the kubeconfig of a certificate, which has to be that of the key and of the Node.
func (w *Wanted) take(data, certificate []byte) error {
	if len(certificate) > maxCertificate {
		return fmt.Errorf("read certificate of %s: it has %d bytes, more than %d", w.name, len(certificate), maxCertificate)
	}

	leaf, err := w.leaf(certificate)
	if err != nil {
		return fmt.Errorf("read certificate of %s: %w", w.name, err)
	}

	text, err := kubeconfig.WithCertificate(data, certificate, w.key)
	if err != nil {
		return err
	}

	w.Issued = &Issued{Kubeconfig: log.NewSecret(string(text)), From: leaf.NotBefore, Until: leaf.NotAfter}

	return nil
}

var errOther = errors.New("it is not what was asked for: another key, or another name")

func (w *Wanted) leaf(certificate []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certificate)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("it is no certificate in PEM")
	}

	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errors.New("it can't be parsed")
	}

	asked, _ := pem.Decode(w.request)

	request, err := x509.ParseCertificateRequest(asked.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse our own request: %w", err)
	}

	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || !key.Equal(leaf.PublicKey) || leaf.Subject.CommonName != userPrefix+w.node {
		return nil, errOther
	}

	return leaf, nil
}
