# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Windows runs this script once, at the first logon after its installation by Packer. It installs the virtio drivers and
# the guest agent, which tells Packer the address of the VM, and opens WinRM for Packer. In machines, WinRM is disabled
# (customize.ps1) and its port is closed (sysprep.xml).
$ErrorActionPreference = 'Stop'

$tools = Get-Volume | Where-Object DriveLetter | ForEach-Object { "$($_.DriveLetter):\virtio-win-guest-tools.exe" } |
    Where-Object { Test-Path $_ } | Select-Object -First 1
if (-not $tools) {
    throw 'no drive has virtio-win-guest-tools.exe: attach the ISO with the virtio drivers'
}

$install = Start-Process -FilePath $tools -ArgumentList '/install', '/quiet', '/norestart' -Wait -PassThru
if ($install.ExitCode -notin 0, 3010) {
    throw "install the virtio drivers: exit code $($install.ExitCode)"
}

Get-NetConnectionProfile | Set-NetConnectionProfile -NetworkCategory Private
Enable-PSRemoting -Force -SkipNetworkProfileCheck

$certificate = New-SelfSignedCertificate -DnsName $env:COMPUTERNAME -CertStoreLocation Cert:\LocalMachine\My
New-Item -Path WSMan:\localhost\Listener -Transport HTTPS -Address * -CertificateThumbPrint $certificate.Thumbprint -Force
New-NetFirewallRule -DisplayName 'HyperFleet template' -Direction Inbound -Protocol TCP -LocalPort 5986 -Action Allow
