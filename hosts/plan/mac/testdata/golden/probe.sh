#!/bin/bash
set -uo pipefail

probe() {
	local label=$1 state=lost code
	(set -e; "probe_${label//-/_}") >/dev/null 2>&1 </dev/null
	code=$?
	if [ "$code" -eq 0 ]; then state=intact; fi
	printf '%s %s\n' "$label" "$state"
}

probe_software_updates() {
	test "$(defaults read /Library/Preferences/com.apple.SoftwareUpdate AutomaticDownload)" = 0
	test "$(defaults read /Library/Preferences/com.apple.SoftwareUpdate AutomaticallyInstallMacOSUpdates)" = 0
	test "$(defaults read /Library/Preferences/com.apple.SoftwareUpdate CriticalUpdateInstall)" = 0
	test "$(defaults read /Library/Preferences/com.apple.SoftwareUpdate SplatEnabled)" = 0
}
probe software-updates

probe_console() {
	test "$(stat -f %Su /dev/console)" = 'm1'
	test -s /etc/kcpassword
}
probe console

probe_pn_interface() {
	networksetup -listVLANs | grep -A 3 -xF 'VLAN User Defined Name: hyperfleet-pn' | grep -xF 'Tag: 1597'
}
probe pn-interface

probe_firewall_anchor() {
	sum=$(sha256sum <'/etc/pf.anchors/hyperfleet.egress' || shasum -a 256 <'/etc/pf.anchors/hyperfleet.egress')
	test "${sum%% *}" = 'f6324f66d06e2fad52252cf761dc8eb386789336a207770a201b098ff54a26c3'
	test ! -L '/etc/pf.anchors/hyperfleet.egress'
	test "$(stat -c '%a %U:%G' '/etc/pf.anchors/hyperfleet.egress' || stat -f '%Lp %Su:%Sg' '/etc/pf.anchors/hyperfleet.egress')" = '644 root:wheel'
}
probe firewall-anchor

probe_firewall_load() {
	sum=$(sha256sum <'/usr/local/libexec/hyperfleet/firewall' || shasum -a 256 <'/usr/local/libexec/hyperfleet/firewall')
	test "${sum%% *}" = '2ad7c02f90840344e3f2e3d51b9655b9294b107fe15b10bd4450e50e715a69e3'
	test ! -L '/usr/local/libexec/hyperfleet/firewall'
	test "$(stat -c '%a %U:%G' '/usr/local/libexec/hyperfleet/firewall' || stat -f '%Lp %Su:%Sg' '/usr/local/libexec/hyperfleet/firewall')" = '755 root:wheel'
}
probe firewall-load

probe_firewall() {
	grep -qxF '# BEGIN hyperfleet' /etc/pf.conf
	pfctl -q -s info | grep '^Status: Enabled'
	pfctl -q -s rules | grep -F 'anchor "com.apple/*"'
	pfctl -q -a com.apple/000.hyperfleet.egress -s rules | grep '^block drop in quick'
}
probe firewall

probe_firewall_plist() {
	sum=$(sha256sum <'/Library/LaunchDaemons/io.hyperfleet.firewall.plist' || shasum -a 256 <'/Library/LaunchDaemons/io.hyperfleet.firewall.plist')
	test "${sum%% *}" = '5321e120b9362f469e5b00f6661e2ee7545b0f3e75af68c4dbc19f2fa0aa028c'
	test ! -L '/Library/LaunchDaemons/io.hyperfleet.firewall.plist'
	test "$(stat -c '%a %U:%G' '/Library/LaunchDaemons/io.hyperfleet.firewall.plist' || stat -f '%Lp %Su:%Sg' '/Library/LaunchDaemons/io.hyperfleet.firewall.plist')" = '644 root:wheel'
}
probe firewall-plist

probe_firewall_job() {
	launchctl print system/io.hyperfleet.firewall
}
probe firewall-job

probe_vmnat_run() {
	sum=$(sha256sum <'/usr/local/libexec/hyperfleet/vmnat' || shasum -a 256 <'/usr/local/libexec/hyperfleet/vmnat')
	test "${sum%% *}" = '673e36e3fe2e6a42c4b4535e7b34f8ee29c21bb3ab1f6c1bdb216b53acacd8e2'
	test ! -L '/usr/local/libexec/hyperfleet/vmnat'
	test "$(stat -c '%a %U:%G' '/usr/local/libexec/hyperfleet/vmnat' || stat -f '%Lp %Su:%Sg' '/usr/local/libexec/hyperfleet/vmnat')" = '755 root:wheel'
}
probe vmnat-run

probe_vmnat() {
	test -n "$(pfctl -q -a com.apple/000.hyperfleet.nat -s nat)"
}
probe vmnat

probe_vmnat_plist() {
	sum=$(sha256sum <'/Library/LaunchDaemons/io.hyperfleet.vmnat.plist' || shasum -a 256 <'/Library/LaunchDaemons/io.hyperfleet.vmnat.plist')
	test "${sum%% *}" = '1d24b5a4cc5f0b32c0ed43ff5c8c6e2f20d6962bc144b9778e6f060d14e8af2a'
	test ! -L '/Library/LaunchDaemons/io.hyperfleet.vmnat.plist'
	test "$(stat -c '%a %U:%G' '/Library/LaunchDaemons/io.hyperfleet.vmnat.plist' || stat -f '%Lp %Su:%Sg' '/Library/LaunchDaemons/io.hyperfleet.vmnat.plist')" = '644 root:wheel'
}
probe vmnat-plist

probe_vmnat_job() {
	launchctl print system/io.hyperfleet.vmnat
}
probe vmnat-job

probe_tailscale_cli() {
	sum=$(sha256sum <'/usr/local/bin/tailscale' || shasum -a 256 <'/usr/local/bin/tailscale')
	test "${sum%% *}" = '54a53d15cfb39fe60b2ad16b21f20be324140762e19fa4c60be93efe9d6d1463'
	test ! -L '/usr/local/bin/tailscale'
	test "$(stat -c '%a %U:%G' '/usr/local/bin/tailscale' || stat -f '%Lp %Su:%Sg' '/usr/local/bin/tailscale')" = '755 root:wheel'
}
probe tailscale-cli

probe_tailscaled() {
	sum=$(sha256sum <'/usr/local/bin/tailscaled' || shasum -a 256 <'/usr/local/bin/tailscaled')
	test "${sum%% *}" = '3c4cae5d3451f133540e3fc5e83bc23f2b1d4144278f8fa9b7823315c547be17'
	test ! -L '/usr/local/bin/tailscaled'
	test "$(stat -c '%a %U:%G' '/usr/local/bin/tailscaled' || stat -f '%Lp %Su:%Sg' '/usr/local/bin/tailscaled')" = '755 root:wheel'
}
probe tailscaled

probe_tailscaled_plist() {
	sum=$(sha256sum <'/Library/LaunchDaemons/io.hyperfleet.tailscaled.plist' || shasum -a 256 <'/Library/LaunchDaemons/io.hyperfleet.tailscaled.plist')
	test "${sum%% *}" = '60cb26dd0a1d736934c3f6d2372f4c3cbcf502811551285baebf594c73846274'
	test ! -L '/Library/LaunchDaemons/io.hyperfleet.tailscaled.plist'
	test "$(stat -c '%a %U:%G' '/Library/LaunchDaemons/io.hyperfleet.tailscaled.plist' || stat -f '%Lp %Su:%Sg' '/Library/LaunchDaemons/io.hyperfleet.tailscaled.plist')" = '644 root:wheel'
}
probe tailscaled-plist

probe_tailscaled_job() {
	launchctl print system/io.hyperfleet.tailscaled | grep -E '^[[:space:]]*pid = [0-9]+'
}
probe tailscaled-job

probe_tailscale() {
	'/usr/local/bin/tailscale' ip -4 | grep '^100\.'
}
probe tailscale

probe_node_exporter() {
	sum=$(sha256sum <'/usr/local/bin/node_exporter' || shasum -a 256 <'/usr/local/bin/node_exporter')
	test "${sum%% *}" = 'b61ceedd29b6c6f176fa9f9eb2cab042c12c4366f8769a40b8babb99cc9cf54d'
	test ! -L '/usr/local/bin/node_exporter'
	test "$(stat -c '%a %U:%G' '/usr/local/bin/node_exporter' || stat -f '%Lp %Su:%Sg' '/usr/local/bin/node_exporter')" = '755 root:wheel'
}
probe node-exporter

probe_node_exporter_run() {
	sum=$(sha256sum <'/usr/local/libexec/hyperfleet/node-exporter' || shasum -a 256 <'/usr/local/libexec/hyperfleet/node-exporter')
	test "${sum%% *}" = '77ac89e83081401c9e8070adc1dce1f790f41b54180ce3b1e44bfe62c4f68c72'
	test ! -L '/usr/local/libexec/hyperfleet/node-exporter'
	test "$(stat -c '%a %U:%G' '/usr/local/libexec/hyperfleet/node-exporter' || stat -f '%Lp %Su:%Sg' '/usr/local/libexec/hyperfleet/node-exporter')" = '755 root:wheel'
}
probe node-exporter-run

probe_node_exporter_plist() {
	sum=$(sha256sum <'/Library/LaunchDaemons/io.hyperfleet.node-exporter.plist' || shasum -a 256 <'/Library/LaunchDaemons/io.hyperfleet.node-exporter.plist')
	test "${sum%% *}" = '4f43b1ad3a3c9cfee3ce887f0a30ce6e67fff7348252cbde57bf700f63e70090'
	test ! -L '/Library/LaunchDaemons/io.hyperfleet.node-exporter.plist'
	test "$(stat -c '%a %U:%G' '/Library/LaunchDaemons/io.hyperfleet.node-exporter.plist' || stat -f '%Lp %Su:%Sg' '/Library/LaunchDaemons/io.hyperfleet.node-exporter.plist')" = '644 root:wheel'
}
probe node-exporter-plist

probe_node_exporter_job() {
	launchctl print system/io.hyperfleet.node-exporter | grep -E '^[[:space:]]*pid = [0-9]+'
}
probe node-exporter-job

probe_kubeconfig() {
	test -s '/etc/tart-kubelet/kubeconfig'
	test ! -L '/etc/tart-kubelet/kubeconfig'
	test "$(stat -c '%a %U:%G' '/etc/tart-kubelet/kubeconfig' || stat -f '%Lp %Su:%Sg' '/etc/tart-kubelet/kubeconfig')" = '600 m1:staff'
}
probe kubeconfig

probe_tart_kubelet_install() {
	read -r pushed signed </var/db/hyperfleet/tart-kubelet.sums
	test "$pushed" = '3ca167d3fbf69131cbd647cd7dc85c9605ddaf0238b6ef1f87a0a050550a7c58'
	sum=$(sha256sum <'/usr/local/bin/tart-kubelet' || shasum -a 256 <'/usr/local/bin/tart-kubelet')
	test "${sum%% *}" = "$signed"
}
probe tart-kubelet-install

probe_launchd_plist() {
	sum=$(sha256sum <'/Library/LaunchAgents/io.hyperfleet.tart-kubelet.plist' || shasum -a 256 <'/Library/LaunchAgents/io.hyperfleet.tart-kubelet.plist')
	test "${sum%% *}" = 'f89752cd780c9f2d67c0673a28a1f2bd670a0593ad031d12586b63d5b6704e6e'
	test ! -L '/Library/LaunchAgents/io.hyperfleet.tart-kubelet.plist'
	test "$(stat -c '%a %U:%G' '/Library/LaunchAgents/io.hyperfleet.tart-kubelet.plist' || stat -f '%Lp %Su:%Sg' '/Library/LaunchAgents/io.hyperfleet.tart-kubelet.plist')" = '644 root:wheel'
}
probe launchd-plist

probe_launchd() {
	launchctl print "gui/$(id -u 'm1')/io.hyperfleet.tart-kubelet" | grep -E '^[[:space:]]*pid = [0-9]+'
}
probe launchd

exit 0
