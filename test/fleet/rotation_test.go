// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestTokenExpires checks that jobs end while the token of the CI platform is expired for an hour, that the template
// names the Secret, and that the jobs that were queued in the meantime run after the Secret has a new token.
func TestTokenExpires(t *testing.T) {
	t.Parallel()

	const next = "ghp_simulatedpersonalaccesstoken0000001"

	scopes := []string{"repo", "admin:org", "admin:org_hook", "manage_runners:enterprise"}
	fast := conformance.FastClock(t, clockSpeed)
	f := newFastFleet(t, fleet.Options{Clock: fast, GitHub: simgithub.Options{
		PATs: []simgithub.PAT{{Token: githubtest.PAT, Scopes: scopes}, {Token: next, Scopes: scopes}},
	}})
	f.Populate(4)
	f.Start()
	f.EventuallyReady(f.NewPool(0))

	release := holdJobs(t, f, 2)
	f.GitHub.RevokeToken(githubtest.PAT)
	checkContains(t, f.EventuallyCondition(f.NewTemplate(), "WorkloadReady", metav1.ConditionFalse, "GitHubCredentialsInvalid"),
		"Secret of bootstrap.config.github.credentials")

	expired := fast.Now()

	queueJobs(f, 2)
	release()
	f.EventuallyJobsDone(2)

	for fast.Since(expired) < time.Hour {
		fast.Step(5 * time.Minute)
		<-fast.After(3 * time.Second)
	}

	if made := f.CountClones(); made != 2 {
		t.Errorf("%d VMs were created, want 2", made)
	}

	f.SetSecret("github", "pat", next)
	f.EventuallyJobsDone(4)
	f.EventuallyClean()

	if made := f.CountClones(); made != 4 {
		t.Errorf("%d VMs were created for 4 jobs", made)
	}
}

// TestAppKeyIsReplacedDuringAJob checks that a job ends, and that its machine is deleted, although the key of the
// GitHub App was revoked while it ran, and that the next job registers with the key that the Secret has by then. The
// operator restarts after the revocation: until then it has an installation token, which outlives the key.
func TestAppKeyIsReplacedDuringAJob(t *testing.T) {
	t.Parallel()

	const installation = 7

	old, next := newAppKey(t), newAppKey(t)
	// The library that signs for the App has the computer's clock.
	f := newFastFleet(t, fleet.Options{Clock: clock.RealClock{}, GitHub: simgithub.Options{App: &simgithub.App{
		ID: 1, PublicKey: &old.PublicKey, Installations: []simgithub.Installation{{
			ID: installation, Account: githubtest.Org,
			Permissions: map[string]string{"administration": "write", "organization_self_hosted_runners": "write", "actions": "read"},
		}},
	}}})

	f.Create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "app"},
		StringData: map[string]string{"id": "1", "installation": "7", "key": encodeAppKey(old)},
	})

	source := func(key string) v1alpha1.SecretValueSource {
		return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "app", Key: key}}
	}

	template := f.NewTemplate()
	template.Spec.Bootstrap.Config.GitHub.Credentials = nil
	template.Spec.Bootstrap.Config.GitHub.App = &v1alpha1.GitHubApp{
		AppID: source("id"), PrivateKey: source("key"), InstallationID: source("installation"),
	}
	createAndStart(f, template, f.NewPool(4))
	f.EventuallyReady(f.NewPool(4))

	release := holdJobs(t, f, 1)

	f.GitHub.ReplaceAppKey(&next.PublicKey)
	f.Stop()
	f.Start()
	checkContains(t, f.EventuallyCondition(template, "WorkloadReady", metav1.ConditionFalse, "GitHubCredentialsInvalid"),
		"bootstrap.config.github.app")
	release()
	f.GitHub.WaitUntil("the job succeeds without a valid key", func(s control.State) bool { return s.Jobs[0].Conclusion == "success" })

	f.SetSecret("app", "key", encodeAppKey(next))
	f.EventuallyCondition(template, "WorkloadReady", metav1.ConditionTrue, "")
	queueJobs(f, 1)
	f.EventuallyJobsDone(2)
	f.EventuallyClean()

	if made := f.CountClones(); made != 2 {
		t.Errorf("%d VMs were created for 2 jobs", made)
	}
}

func newAppKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must.Do(t, err)

	return key
}

func encodeAppKey(key *rsa.PrivateKey) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

// TestHypervisorCAIsReplaced checks that jobs run on while Proxmox VE has a certificate of another CA, that the cluster
// reports it, and that the same operator continues with the same machines once spec.tls.caBundle has both CAs.
func TestHypervisorCAIsReplaced(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	cluster := f.NewCluster()
	cluster.Spec.TLS = &v1alpha1.HypervisorTLS{CABundle: f.PVE.CAPEM()}
	f.CreateCluster(cluster)
	f.Create(f.NewTemplate())
	f.Create(f.NewPool(4))
	f.Start()
	f.EventuallyReady(f.NewPool(4))

	release := holdJobs(t, f, 2)
	former := f.PVE.CAPEM()

	must.Do(t, f.PVE.ReplaceCA())
	f.EventuallyCondition(cluster, step.Ready, metav1.ConditionFalse, "CertificateUntrusted")
	queueJobs(f, 1)
	release()
	f.GitHub.WaitUntil("the running jobs succeed", func(s control.State) bool {
		return s.Jobs[0].Conclusion == "success" && s.Jobs[1].Conclusion == "success"
	})

	updateObject(f, cluster, func() { cluster.Spec.TLS.CABundle = slices.Concat(former, f.PVE.CAPEM()) })
	f.EventuallyReady(cluster)
	f.EventuallyJobsDone(3)
	f.EventuallyClean()

	if made := f.CountClones(); made != 3 {
		t.Errorf("%d VMs were created for 3 jobs", made)
	}
}
