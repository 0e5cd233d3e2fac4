// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Annotations that HyperShift sets (hypershift-operator/controllers/nodepool, token.go and
// nodepool_controller.go).
const (
	annotationConfig   = "hypershift.openshift.io/nodePoolCurrentConfigVersion"
	annotationNodePool = "hypershift.openshift.io/nodePool"
)

// startIgnitionServer starts one Ignition server for all control planes (ignition-server/cmd, start.go).
func (s *Sim) startIgnitionServer() {
	s.ignitionByPool = map[string]servedIgnition{}
	s.server = httptest.NewTLSServer(http.HandlerFunc(s.handleIgnition))
}

// servedIgnition is the configuration that the Ignition server serves for the token of a NodePool. Its
// pool is NAMESPACE/NAME, its image the release image.
type servedIgnition struct{ pool, token, image string }

func (s *Sim) handleIgnition(w http.ResponseWriter, r *http.Request) {
	encoded, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	token, err := base64.StdEncoding.DecodeString(encoded)

	switch {
	case !strings.HasPrefix(r.URL.Path, "/ignition") || strings.Contains(r.URL.Path[1:], "/"):
		http.NotFound(w, r)

		return
	case !isBearer || err != nil:
		http.Error(w, "Unauthorized", http.StatusUnauthorized)

		return
	}

	s.mu.Lock()
	served, isKnown := s.ignitionByPool[r.Header.Get("Nodepool")]
	s.ignitionRequests++
	s.mu.Unlock()

	if !isKnown || served.token != string(token) {
		http.Error(w, "Token not found", http.StatusNetworkAuthenticationRequired)

		return
	}

	text, err := s.renderWorkerIgnition(served)
	if err != nil {
		http.Error(w, "Invalid ignition payload", http.StatusInternalServerError)

		return
	}

	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(text)
}

// IgnitionRequests returns how many requests with a bearer token the Ignition server has received. It
// also counts requests with a token that the server rejected.
func (s *Sim) IgnitionRequests() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.ignitionRequests
}

// renderWorkerIgnition returns the Ignition configuration of a worker. It contains the kubeconfig with
// which the worker joins the cluster, the machine configuration with the operating system image, and
// the SSH keys that may log in.
func (s *Sim) renderWorkerIgnition(served servedIgnition) ([]byte, error) {
	namespace, name, _ := strings.Cut(served.pool, "/")

	kubeconfig, err := s.options.Kubeconfig(namespace, name)
	if err != nil {
		return nil, fmt.Errorf("create kubeconfig: %w", err)
	}

	machine, err := json.Marshal(map[string]any{
		"kind": "MachineConfig",
		"spec": map[string]any{"osImageURL": "quay.io/machine-os-of/" + served.image, "kernelArguments": []string{"a+b"}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode ignition: %w", err)
	}

	file := func(path, source string) map[string]any {
		return map[string]any{"path": path, "mode": 420, "overwrite": true, "contents": map[string]any{"source": source}}
	}

	text, err := json.Marshal(map[string]any{
		"ignition": map[string]any{"version": "3.2.0"},
		"passwd":   map[string]any{"users": []any{map[string]any{"name": "core", "sshAuthorizedKeys": []string{"ssh-ed25519 AAAA"}}}},
		"storage": map[string]any{"files": []any{
			file("/etc/ignition-machine-config-encapsulated.json", "data:,"+url.PathEscape(string(machine))),
			file("/etc/kubernetes/kubeconfig", "data:text/plain;charset=utf-8;base64,"+base64.StdEncoding.EncodeToString(kubeconfig)),
		}},
		"systemd": map[string]any{"units": []any{map[string]any{"name": "kubelet.service", "enabled": true}}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode ignition: %w", err)
	}

	return text, nil
}

// ensureUserData writes the NodePool's user data as HyperShift does for pools whose machines HyperShift
// does not create. The Secret is in the control plane's namespace, its name ends with the digest of the
// configuration, and the NodePool is annotated with that digest. ensureUserData deletes the Secret of
// the previous configuration. It does nothing if there is no Ignition server or no kubeconfig yet.
func (p *nodePoolReconciler) ensureUserData(ctx context.Context, cluster *unstructured.Unstructured) error {
	image, _, _ := unstructured.NestedString(p.object.Object, "spec", "release", "image")
	kubeconfig, _, _ := unstructured.NestedString(cluster.Object, "status", "kubeconfig", "name")

	if p.server == nil || kubeconfig == "" {
		return nil
	}

	sum := sha256.Sum256([]byte(image))
	version := hex.EncodeToString(sum[:4])
	namespace := ControlPlaneNamespace(cluster.GetNamespace(), cluster.GetName())

	if old := p.object.GetAnnotations()[annotationConfig]; old != version {
		if old != "" {
			stale := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "user-data-" + p.key.Name + "-" + old}}
			if err := client.IgnoreNotFound(p.client.Delete(ctx, stale)); err != nil {
				return fmt.Errorf("delete user data: %w", err)
			}
		}

		before := p.object.DeepCopy()
		annotations := p.object.GetAnnotations()

		if annotations == nil {
			annotations = map[string]string{}
		}

		annotations[annotationConfig] = version
		p.object.SetAnnotations(annotations)

		if err := p.client.Patch(ctx, p.object, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("annotate NodePool: %w", err)
		}
	}

	return p.writeUserData(ctx, namespace, version, image)
}

// tokenFor returns the Ignition token of the NodePool for a configuration version. The token changes with
// each RotateIgnition.
func (p *nodePoolReconciler) tokenFor(version string) string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return fmt.Sprintf("token-%s-%s-%d", p.key.Name, version, p.rotations)
}

func (p *nodePoolReconciler) writeUserData(ctx context.Context, namespace, version, image string) error {
	token := p.tokenFor(version)

	value, err := json.Marshal(map[string]any{"ignition": map[string]any{
		"version": "3.2.0",
		"security": map[string]any{"tls": map[string]any{"certificateAuthorities": []any{map[string]any{
			"source": "data:text/plain;base64," + base64.StdEncoding.EncodeToString(pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})),
		}}}},
		"config": map[string]any{"merge": []any{map[string]any{
			"source": p.server.URL + "/ignition",
			"httpHeaders": []any{
				map[string]any{"name": "Authorization", "value": "Bearer " + base64.StdEncoding.EncodeToString([]byte(token))},
				map[string]any{"name": "NodePool", "value": p.key.NamespacedName.String()},
				map[string]any{"name": "TargetConfigVersionHash", "value": version},
			},
		}}},
	}})
	if err != nil {
		return fmt.Errorf("encode user data: %w", err)
	}

	p.mu.Lock()
	p.ignitionByPool[p.key.NamespacedName.String()] = servedIgnition{
		pool: p.key.NamespacedName.String(), token: token, image: image,
	}
	p.mu.Unlock()

	secret := &corev1.Secret{}
	objectKey := types.NamespacedName{Namespace: namespace, Name: "user-data-" + p.key.Name + "-" + version}

	err = p.client.Get(ctx, objectKey, secret)
	if err == nil {
		if bytes.Equal(secret.Data["value"], value) {
			return nil
		}

		secret.Data["value"] = value

		if err := p.client.Update(ctx, secret); err != nil {
			return fmt.Errorf("update user data: %w", err)
		}

		return nil
	}

	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get user data: %w", err)
	}

	secret = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: objectKey.Namespace, Name: objectKey.Name,
			Annotations: map[string]string{annotationNodePool: p.key.NamespacedName.String()},
		},
		Data: map[string][]byte{"disableTemplating": []byte("dHJ1ZQ=="), "value": value},
	}
	if err := p.client.Create(ctx, secret); err != nil {
		return fmt.Errorf("create user data: %w", err)
	}

	return nil
}

// RotateIgnition changes the token in all user data, as HyperShift does several times a day.
func (s *Sim) RotateIgnition() {
	s.mu.Lock()
	s.rotations++
	s.mu.Unlock()

	s.enqueueAll()
}
