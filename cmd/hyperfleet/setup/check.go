// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// written are the objects of the manifests, read back: what is tried is what is applied.
type written struct {
	cluster  v1alpha1.HypervisorCluster
	template v1alpha1.HypervisorMachineTemplate
	pool     v1alpha1.RunnerPool
	secrets  unapplied
}

// read reads the manifests that the answers come to.
func (a *answers) read() (*written, error) {
	out := &written{secrets: unapplied{}}

	for _, name := range []string{fleetFile, secretsFile} {
		text, err := a.render(name)
		if err != nil {
			return nil, err
		}

		for part := range strings.SplitSeq(text, "\n---\n") {
			if err := out.add([]byte(part)); err != nil {
				return nil, fmt.Errorf("read back %s: %w", name, err)
			}
		}
	}

	return out, nil
}

func (w *written) add(text []byte) error {
	var object map[string]any
	if err := yaml.Unmarshal(text, &object); err != nil {
		return err
	}

	secret := &corev1.Secret{}
	kind, _ := object["kind"].(string)
	into := map[string]any{
		"HypervisorCluster": &w.cluster, "HypervisorMachineTemplate": &w.template, "RunnerPool": &w.pool, "Secret": secret,
	}[kind]

	if into == nil {
		return nil
	}

	// As strict as the API server, to which the case of a field matters.
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, into, true); err != nil {
		return err
	}

	if kind == "Secret" {
		secret.Data = map[string][]byte{}
		for key, value := range secret.StringData {
			secret.Data[key] = []byte(value)
		}

		w.secrets[client.ObjectKeyFromObject(secret)] = secret
	}

	return nil
}

// unapplied reads the Secrets that are not on any API server yet.
type unapplied map[client.ObjectKey]*corev1.Secret

// Get gives a Secret, or what is around it.
func (u unapplied) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	found := u[key]
	if found == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.String())
	}

	switch into := into.(type) {
	case *corev1.Secret:
		found.DeepCopyInto(into)
	case *metav1.PartialObjectMetadata:
		found.ObjectMeta.DeepCopyInto(&into.ObjectMeta)
	default:
		return fmt.Errorf("get Secret %s: it is no %T", key, into)
	}

	return nil
}

// List lists nothing.
func (u unapplied) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list Secrets: they are read by name")
}

// checkHypervisor tries the cluster and the template as the operator does, and says what it saw.
func (a *answers) checkHypervisor(ctx context.Context) (string, error) {
	objects, err := a.read()
	if err != nil {
		return "", err
	}

	clusters := &connect.Clusters{
		Secrets:   &connect.Secrets{Reader: objects.secrets, OperatorNamespace: a.OperatorNamespace},
		Factories: map[string]hypervisor.Factory{v1alpha1.ProviderProxmox: proxmox.New},
		Options:   hypervisor.Options{OperatorUID: "hyperfleet-init", Wake: func(hypervisor.Owner) {}},
	}
	defer clusters.Close()

	provider, err := clusters.Ensure(ctx, &objects.cluster)
	if err != nil {
		return "", err
	}

	info, err := provider.Check(ctx)
	if err != nil {
		return "", err
	}

	found, err := provider.Resolve(ctx, vmspec.TemplateRef(&objects.template), vmspec.Shape(&objects.template))
	if err != nil {
		return "", err
	}

	said := fmt.Sprintf("%s %s answers, with %s; template %s is on %d of them",
		info.Product, info.Version, english.Plural(len(info.Nodes), "node", ""), a.Template, len(found))

	return strings.Join(append([]string{said}, info.Warnings...), "\n  "), nil
}

// checkPlatform tries the credentials of the CI platform as the operator does.
func (a *answers) checkPlatform(ctx context.Context) error {
	objects, err := a.read()
	if err != nil {
		return err
	}

	var named []string
	if a.GitHubURL != "" {
		named = []string{a.GitHubURL} // by whoever runs this, wherever it is
	}

	reach, err := httpbound.NewReach(named, nil)
	if err != nil {
		return err
	}

	platforms := &connect.Workloads{
		Secrets:   &connect.Secrets{Reader: objects.secrets, OperatorNamespace: a.OperatorNamespace, Reach: reach},
		Platforms: operator.Platforms(),
	}

	provider, err := platforms.For(ctx, &objects.template, objects.pool.Spec.Workload)
	if err != nil {
		return err
	}

	return provider.Validate(ctx)
}

// certificate is what a server shows: trusted by this machine, or only by its fingerprint.
func certificate(ctx context.Context, endpoint string) (fingerprint string, trusted bool, err error) {
	server, err := url.Parse(endpoint)
	if err != nil {
		return "", false, fmt.Errorf("read endpoint: %w", err)
	}

	address := server.Host
	if server.Port() == "" {
		address = net.JoinHostPort(server.Hostname(), "443")
	}

	dial := func(unverified bool) (net.Conn, error) {
		dialer := &tls.Dialer{Config: &tls.Config{
			// Nothing is sent over this connection: it is made to see the certificate.
			InsecureSkipVerify: unverified, //nolint:gosec // as above
			MinVersion:         tls.VersionTLS12, ServerName: server.Hostname(),
		}}

		return dialer.DialContext(ctx, "tcp", address)
	}

	if conn, err := dial(false); err == nil {
		return "", true, conn.Close()
	}

	conn, err := dial(true)
	if err != nil {
		return "", false, fmt.Errorf("reach %s: %w", address, err)
	}
	defer conn.Close() //nolint:errcheck // nothing was sent

	secure, ok := conn.(*tls.Conn)
	if !ok || len(secure.ConnectionState().PeerCertificates) == 0 {
		return "", false, fmt.Errorf("reach %s: it shows no certificate", address)
	}

	return hypervisor.Fingerprint(sha256.Sum256(secure.ConnectionState().PeerCertificates[0].Raw)), false, nil
}

// apiURL is a Proxmox VE's API of what people write: a host, a host with a port, a URL.
func apiURL(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}

	parsed, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "https" {
		return "", errors.New("the endpoint is a host, or an https URL such as https://pve.example.com:8006")
	}

	if parsed.Port() == "" {
		parsed.Host = net.JoinHostPort(parsed.Hostname(), "8006")
	}

	if parsed.Path == "" {
		parsed.Path = "/api2/json"
	}

	parsed.RawQuery, parsed.Fragment = "", ""

	return parsed.String(), nil
}
